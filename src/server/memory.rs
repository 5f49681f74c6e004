//! Whether the process has more memory than it may: then new work is refused, and what has been let
//! in can finish. Read from the system each second, because it is the system that ends a process
//! which has too much.

use crate::proxy::Gate;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// How often it is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Looks again and again, and tells the gate. `most` is in bytes.
pub(super) async fn watch(most: u64, gate: Arc<Gate>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(resident) = resident() else {
            tracing::warn!("the memory of the process cannot be read; limits.memory does nothing");
            return;
        };
        let is_full = resident > most;
        if is_full != gate.is_memory_full() {
            gate.set_memory_full(is_full);
            if is_full {
                tracing::warn!(
                    resident,
                    most,
                    "out of memory that may be used: requests are refused"
                );
            } else {
                tracing::info!(resident, most, "requests are taken again");
            }
        }
    }
}

/// Bytes of memory that the process has now.
fn resident() -> Option<u64> {
    // A file of the kernel's: it does not block.
    parsed(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn parsed(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_kernel_is_understood() {
        let status = "Name:\ttokenweir\nVmRSS:\t  5120 kB\nThreads:\t3\n";
        assert_eq!(parsed(status), Some(5 << 20));
        assert_eq!(parsed("Name:\tx\n"), None);
        #[cfg(target_os = "linux")]
        assert!(resident().unwrap() > 1 << 20);
    }

    #[tokio::test(start_paused = true)]
    #[cfg(target_os = "linux")]
    async fn the_gate_is_told() {
        let gate = Arc::new(Gate::default());
        let watching = tokio::spawn(watch(1, gate.clone()));
        while !gate.is_memory_full() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        watching.abort();
    }
}

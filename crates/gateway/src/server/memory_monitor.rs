//! Makes the overload guard refuse new requests while the resident memory of the process exceeds
//! `limits.memory`. Open requests continue.
//!
//! The kernel provides the resident memory, which is read every second. The kernel's value counts, because the
//! kernel kills a process that exceeds its memory limit.

use crate::proxy::OverloadGuard;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Time between two samples of the resident memory.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Compares the resident memory of the process with `limit` in an endless loop, and tells the overload guard
/// whether the limit is exceeded. `limit` is in bytes. Returns only if the resident memory cannot be read.
pub(super) async fn monitor_memory(limit: u64, overload_guard: Arc<OverloadGuard>) {
    let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(resident) = resident_memory_bytes() else {
            tracing::warn!(
                "cannot read the resident memory of the process: limits.memory has no effect"
            );
            return;
        };
        let is_full = resident > limit;
        if is_full != overload_guard.is_memory_full.replace(is_full) {
            if is_full {
                tracing::warn!(
                    resident,
                    most = limit,
                    "resident memory exceeds limits.memory: refusing new requests"
                );
            } else {
                tracing::info!(
                    resident,
                    most = limit,
                    "resident memory is within limits.memory: accepting requests again"
                );
            }
        }
    }
}

/// Resident memory of the process, in bytes. `None`: `/proc` does not exist or lacks the value.
fn resident_memory_bytes() -> Option<u64> {
    // Reading `/proc` does not block, because it is not on a disk.
    parse_resident_bytes(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Parses the `VmRSS` line of `/proc/self/status`. Returns bytes. `None`: no valid line.
fn parse_resident_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_parsed_from_proc() {
        let status = "Name:\ttokenweir\nVmRSS:\t  5120 kB\nThreads:\t3\n";
        assert_eq!(parse_resident_bytes(status), Some(5 << 20));
        assert_eq!(parse_resident_bytes("Name:\tx\n"), None);
        #[cfg(target_os = "linux")]
        assert!(resident_memory_bytes().unwrap() > 1 << 20);
    }
}

//! `cargo bench --bench parts`: measures each part of the hot path on bytes that were recorded from a real
//! vLLM server. Prints the time per item and the bytes per second.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints its results, and has failed if it cannot go on"
)]

mod work;

use std::time::Duration;
use tokenweir_protocol::clock;

/// The allocator of the shipped program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The measurements are short, because they only compare the code before and after a change on the same
/// machine.
const WARM_UP: Duration = Duration::from_millis(500);
const SAMPLES: u32 = 30;
const SAMPLE: Duration = Duration::from_millis(60);

/// Executes `work` repeatedly for at least `time`. Returns the mean time of one execution.
fn measure(work: &mut dyn FnMut(), time: Duration) -> Duration {
    let begun = clock::now();
    for executed in 1.. {
        work();
        let took = clock::now() - begun;
        if took >= time {
            return took / executed;
        }
    }
    Duration::ZERO
}

/// Prints the minimum and median time per item of each part whose name contains the first argument, or of all
/// parts.
fn main() {
    let filter = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with("--"));
    for mut part in work::all(&[2, 16, 1_000]) {
        if filter
            .as_ref()
            .is_some_and(|filter| !part.name.contains(filter))
        {
            continue;
        }
        measure(&mut part.work, WARM_UP);
        let mut times: Vec<f64> = (0..SAMPLES)
            .map(|_| measure(&mut part.work, SAMPLE).as_secs_f64() / part.items as f64)
            .collect();
        times.sort_by(f64::total_cmp);
        let (least, median) = (times[0], times[times.len() / 2]);
        let speed = part.bytes as f64 / part.items as f64 / median / 1e6;
        println!(
            "{:<60} {:>10.1} ns {:>10.1} ns {speed:>8.0} MB/s",
            part.name,
            least * 1e9,
            median * 1e9
        );
    }
}

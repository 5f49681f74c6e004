//! `cargo bench --bench scrape`: what does it cost to watch 100 replicas?
//!
//! ```text
//! this process                                 a child of it
//! 100 ports, each with a recorded page  ◄────  100 watchers, as in the gateway, and nothing else
//! ```
//!
//! The child asks the kernel for the CPU time of its own threads, so what the replicas cost is not in
//! it. It takes less than a minute, and fails if a second of looks costs more than 1 % of a core.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the numbers are for people")]

mod replicas;
mod watchers;

use std::process::{Command, ExitCode};

// As in the gateway.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Replicas that are watched.
const COUNT: usize = 100;
/// Most that one look a second at each of them may cost, in percent of one core.
const BAR: f64 = 1.0;
/// The addresses of the replicas, for the child.
const ADDRESSES: &str = "SCRAPE_ADDRESSES";

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    if let Ok(addresses) = std::env::var(ADDRESSES) {
        return watchers::run(&addresses);
    }
    let pages = replicas::pages();
    let bytes: usize = pages.iter().map(Vec::len).sum();
    println!("{} recorded pages of {} KB on average", pages.len(), bytes / pages.len() / 1_000);
    let addresses = replicas::serve(pages, COUNT).join(",");
    let watchers = Command::new(std::env::current_exe().unwrap())
        .arg("--bench")
        .env_clear()
        .env(ADDRESSES, addresses)
        .status();
    if watchers.unwrap().success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

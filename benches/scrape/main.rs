//! `cargo bench --bench scrape`: measures the cost of scraping 100 backends.
//!
//! ```text
//! this process                                 a child of it
//! 100 ports, each with a recorded page  ◄────  100 scrape tasks, as in the gateway
//! ```
//!
//! The child reads the CPU time of its own threads from the kernel, so the cost of the backends is
//! excluded. The bench takes less than a minute. It fails if one scrape per second of all backends
//! costs more than 1 % of a core.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the results are printed")]

mod backends;
mod watchers;

use std::process::{Command, ExitCode};

// The allocator of the packages.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Number of scraped backends.
const COUNT: usize = 100;
/// Maximum cost of one scrape per second of each backend, in percent of one core.
const MAX_CPU_PERCENT: f64 = 1.0;
/// The environment variable with the addresses of the backends, for the child.
const ADDRESSES: &str = "SCRAPE_ADDRESSES";

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    if let Ok(addresses) = std::env::var(ADDRESSES) {
        return watchers::run(&addresses);
    }
    let pages = backends::pages();
    let bytes: usize = pages.iter().map(Vec::len).sum();
    println!("{} recorded pages of {} KB on average", pages.len(), bytes / pages.len() / 1_000);
    let addresses = backends::serve(pages, COUNT).join(",");
    let watchers = Command::new(std::env::current_exe().unwrap())
        .arg("--bench")
        .env_clear()
        .env(ADDRESSES, addresses)
        .status();
    if watchers.unwrap().success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

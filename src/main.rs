//! The `tokenweir` binary: parses the arguments and runs the command.

use std::process::ExitCode;

/// The allocator is jemalloc: many long streams cause little fragmentation, and free memory is
/// returned to the kernel.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match tokenweir::cli::parse(std::env::args_os()) {
        Ok(cli) => tokenweir::cli::run(cli),
        Err(error) => tokenweir::cli::report(&error),
    }
}

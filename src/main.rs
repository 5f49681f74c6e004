//! The `tokenweir` binary: parses the arguments and runs the command.

use std::process::ExitCode;

/// mimalloc is faster than the allocator of the C library, and returns freed memory to the kernel.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match tokenweir::cli::parse(std::env::args_os()) {
        Ok(cli) => tokenweir::cli::run(cli),
        Err(error) => tokenweir::cli::report(&error),
    }
}

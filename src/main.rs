//! The `tokenweir` binary: parses the arguments and runs the command.

use std::process::ExitCode;

/// jemalloc has little fragmentation with many long streams, and returns memory to the kernel.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match tokenweir::cli::parse(std::env::args_os()) {
        Ok(cli) => tokenweir::cli::run(cli),
        Err(error) => {
            // `--help` and `--version` arrive here too. A closed output pipe is not an error.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}

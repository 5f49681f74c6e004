//! The binary: arguments in, exit code out.

use std::process::ExitCode;

/// Streams are many and live long: jemalloc keeps them small and hands memory back.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match tokenweir::cli::parse(std::env::args_os()) {
        Ok(cli) => tokenweir::cli::run(cli),
        Err(error) => {
            // `--help` and `--version` come this way too; a closed pipe is no failure of ours.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}

//! `cargo bench --profile counted --bench instructions`: counts the instructions of the hot path.
//!
//! ```text
//! this process ──► valgrind --tool=callgrind ──► this program: clients, gateway, backend in one thread
//!      ▲                                                │
//!      └── what each lap took ◄─────────────────────────┘ a dump before and after each
//! baseline.txt
//! ```
//!
//! The counts do not depend on the load or the speed of the machine. The bench fails if a count is
//! more than 5 % above the baseline. `INSTRUCTIONS_RECORD=1` records the counts as the new
//! baseline. The dumps stay in the target directory, for `callgrind_annotate`.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the results are printed")]

mod baseline;
#[path = "../support/engine.rs"]
#[expect(
    dead_code,
    reason = "this bench runs its backend in a task of its own thread"
)]
mod engine;
mod laps;
mod peers;
mod scenario;
#[path = "../parts/work/mod.rs"]
#[expect(dead_code, reason = "another bench uses the byte counts")]
mod work;

use baseline::Baseline;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

// The allocator of the shipped gateway.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// If this environment variable is set, the process is the measured one: it writes its dumps into this
/// directory.
const FOLDER: &str = "INSTRUCTIONS_FOLDER";
const RECORD: &str = "INSTRUCTIONS_RECORD";

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    if let Ok(folder) = std::env::var(FOLDER) {
        scenario::run(Path::new(&folder));
        return ExitCode::SUCCESS;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("instructions");
    // The directory does not exist before the first run.
    drop(fs::remove_dir_all(&folder));
    fs::create_dir_all(&folder).unwrap();
    count(&folder);
    let counts = laps::read(&folder);
    let baseline = Baseline::read();
    let (table, worse) = baseline.compare(&counts);
    print!("{table}");
    if std::env::var(RECORD).is_ok() {
        baseline::write(&counts);
        return ExitCode::SUCCESS;
    }
    if worse == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs this program again under valgrind, which writes the dumps of the counts to `folder`.
fn count(folder: &Path) {
    let status = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind"])
        .arg(format!(
            "--callgrind-out-file={}",
            folder.join(laps::DUMP).display()
        ))
        .arg(format!("--dump-before={}*", laps::MARK))
        .arg(std::env::current_exe().unwrap())
        .arg("--bench")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env(FOLDER, folder)
        // The access log of the measured gateway goes to standard output.
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success(), "the measured process failed");
}

//! Helpers that run `tokenweir-lab` as a program.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns a command that runs `tokenweir-lab` with these arguments and without environment variables.
pub(crate) fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir-lab"));
    command
        .args(arguments.split(' ').filter(|it| !it.is_empty()))
        .env_clear();
    command
}

pub(crate) async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

/// Runs `tokenweir-lab`, which must succeed. Returns its report.
pub(crate) async fn report(arguments: &str) -> Value {
    let output = run(command(arguments)).await;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Asserts that `tokenweir-lab` fails with an error message that has these words.
pub(crate) async fn assert_error(arguments: &str, words: &str) {
    let output = run(command(arguments)).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains(words), "no `{words}` in {message}");
}

/// Returns a path in the folder of this test run. If the suite runs twice at the same time, both runs have
/// different folders.
pub(crate) fn file(name: &str) -> PathBuf {
    let run = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-{}", std::process::id()));
    fs::create_dir_all(&run).unwrap();
    run.join(name)
}

//! Runs of `tokenweir-lab` as a program.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The program with these arguments and without environment variables.
pub(crate) fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir-lab"));
    command.args(arguments.split(' ').filter(|it| !it.is_empty())).env_clear();
    command
}

pub(crate) async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// The report of a run that must succeed.
pub(crate) async fn report(arguments: &str) -> Value {
    let output = run(command(arguments)).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Asserts that a run fails with an error message that has these words.
pub(crate) async fn assert_error(arguments: &str, words: &str) {
    let output = run(command(arguments)).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains(words), "no `{words}` in {message}");
}

/// A path in the folder of the tests.
pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

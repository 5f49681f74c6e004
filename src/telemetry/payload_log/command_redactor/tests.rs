//! Tests with redactor commands that work, fail, hang or write invalid output.

use super::*;

/// Timeout of a command that does not respond. It is short, because a test waits until it expires.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);

fn texts(prompt: &str) -> PayloadTexts {
    PayloadTexts { prompt: prompt.into(), answer: "answer".into() }
}

/// A redactor that runs a shell script.
fn shell_redactor(script: &str) -> CommandRedactor {
    CommandRedactor::new(["sh", "-c", script].map(String::from).to_vec())
}

#[test]
fn command_redacts_texts_one_after_the_other() {
    let script = "while read -r line; do printf '%s\\n' \"$line\" | sed s/hidden/shown/; done";
    let mut command = shell_redactor(script);
    let timeout = Duration::from_secs(20);
    assert_eq!(command.redact(&texts("a hidden \\n b"), timeout), Some(texts("a shown \\n b")));
    assert_eq!(command.redact(&texts("hidden"), timeout), Some(texts("shown")));
}

#[test]
fn failing_hanging_or_invalid_command_returns_none() {
    for script in ["exit 1", "exec sleep 100", "read -r line; echo no; exec cat", "echo {}; cat"] {
        let mut command = shell_redactor(script);
        assert_eq!(command.redact(&texts("a"), SHORT_TIMEOUT), None, "{script}");
        // The process is not restarted before the restart interval has passed.
        assert!(command.process.is_none());
        assert_eq!(command.redact(&texts("b"), SHORT_TIMEOUT), None, "{script}");
        assert!(command.process.is_none());
    }
    let mut missing = CommandRedactor::new(vec!["/nowhere".into()]);
    assert_eq!(missing.redact(&texts("a"), SHORT_TIMEOUT), None);
}

#[test]
fn dropped_command_kills_its_process() {
    let mut command = shell_redactor("read -r line; printf '%s\\n' \"$line\"; exec sleep 1000");
    assert!(command.redact(&texts("a"), Duration::from_secs(20)).is_some());
    let id = command.process.as_ref().unwrap().child.id();
    drop(command);
    let mut kill = std::process::Command::new("kill");
    let status = kill.args(["-0", &id.to_string()]).stderr(Stdio::null()).status().unwrap();
    assert!(!status.success(), "process {id} has ended");
}

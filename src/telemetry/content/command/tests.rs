//! Programs of every kind.

use super::*;

/// Long enough for a busy machine, short enough for a test that waits for it.
const BRIEFLY: Duration = Duration::from_millis(200);

fn texts(prompt: &str) -> Texts {
    Texts { prompt: prompt.into(), answer: "answer".into() }
}

fn shell(script: &str) -> Command {
    Command::new(["sh", "-c", script].map(String::from).to_vec())
}

#[test]
fn a_command_treats_one_text_after_the_other() {
    let script = "while read -r line; do printf '%s\\n' \"$line\" | sed s/hidden/shown/; done";
    let mut command = shell(script);
    let patience = Duration::from_secs(20);
    assert_eq!(command.treat(&texts("a hidden \\n b"), patience), Some(texts("a shown \\n b")));
    assert_eq!(command.treat(&texts("hidden"), patience), Some(texts("shown")));
}

#[test]
fn a_command_that_dies_hangs_or_babbles_gives_nothing() {
    for script in ["exit 1", "exec sleep 100", "read -r line; echo no; exec cat", "echo {}; cat"] {
        let mut command = shell(script);
        assert_eq!(command.treat(&texts("a"), BRIEFLY), None, "{script}");
        // It is not started again at once.
        assert!(command.running.is_none());
        assert_eq!(command.treat(&texts("b"), BRIEFLY), None, "{script}");
        assert!(command.running.is_none());
    }
    assert_eq!(Command::new(vec!["/nowhere".into()]).treat(&texts("a"), BRIEFLY), None);
}

#[test]
fn a_command_is_gone_when_it_is_not_needed_any_more() {
    let mut command = shell("read -r line; printf '%s\\n' \"$line\"; exec sleep 1000");
    assert!(command.treat(&texts("a"), Duration::from_secs(20)).is_some());
    let id = command.running.as_ref().unwrap().child.id();
    drop(command);
    let mut kill = std::process::Command::new("kill");
    let status = kill.args(["-0", &id.to_string()]).stderr(Stdio::null()).status().unwrap();
    assert!(!status.success(), "{id} is there no more");
}

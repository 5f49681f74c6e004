//! A redactor that is a program: one JSON object a line in, one out. It is started when it is
//! needed, and again at most once a second when it has died or was too slow.

use super::treatment::{Texts, as_line};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokenweir_core::clock;

/// The program, running or not.
pub(super) struct Command {
    /// The program and its arguments.
    line: Vec<String>,
    running: Option<Running>,
    /// When it was last started.
    started: Option<Instant>,
}

/// Killed when it is dropped.
struct Running {
    child: Child,
    /// To the thread that speaks with it, because it may not listen.
    questions: Sender<Vec<u8>>,
    answers: Receiver<Option<Texts>>,
}

/// The time between two starts.
const RESTART: Duration = Duration::from_secs(1);
/// The longest answer in bytes. A program that says more is none of this kind.
const MAX_ANSWER: u64 = 64 << 20;

impl Command {
    /// A program that is not started yet.
    pub(super) fn new(line: Vec<String>) -> Self {
        Self { line, running: None, started: None }
    }

    /// The texts as the program gives them back. `None`: it did not, in this time.
    pub(super) fn treat(&mut self, texts: &Texts, patience: Duration) -> Option<Texts> {
        if self.running.is_none() {
            self.start();
        }
        let running = self.running.as_ref()?;
        let treated = running.questions.send(as_line(texts)).ok().and_then(|()| {
            let answer = running.answers.recv_timeout(patience).ok();
            answer.flatten()
        });
        if treated.is_none() {
            // A late answer must not be taken for that to the next question.
            self.running = None;
        }
        treated
    }

    fn start(&mut self) {
        let now = clock::now();
        if self.started.is_some_and(|started| now.saturating_duration_since(started) < RESTART) {
            return;
        }
        self.started = Some(now);
        match Running::start(&self.line) {
            Ok(running) => self.running = Some(running),
            Err(error) => tracing::warn!(%error, "the redactor cannot be started"),
        }
    }
}

impl Running {
    fn start(line: &[String]) -> std::io::Result<Self> {
        let none = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let (program, arguments) = line.split_first().ok_or_else(none)?;
        let mut child = std::process::Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (questions, asked) = channel();
        let (told, answers) = channel();
        let running = Self { child, questions, answers };
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else { return Err(none()) };
        let thread = thread::Builder::new().name("redactor".to_owned());
        thread.spawn(move || speak(stdin, stdout, &asked, &told))?;
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself. Waiting leaves no zombie.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends with the program, or with whoever asks.
fn speak(
    mut stdin: ChildStdin,
    stdout: ChildStdout,
    asked: &Receiver<Vec<u8>>,
    told: &Sender<Option<Texts>>,
) {
    let mut stdout = BufReader::new(stdout);
    while let Ok(question) = asked.recv() {
        if stdin.write_all(&question).and_then(|()| stdin.flush()).is_err() {
            return;
        }
        let mut answer = Vec::new();
        match stdout.by_ref().take(MAX_ANSWER).read_until(b'\n', &mut answer) {
            Ok(1..) => {}
            _ => return,
        }
        if told.send(serde_json::from_slice(&answer).ok()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;

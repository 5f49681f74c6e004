//! A redactor command: a process that reads one JSON object per line and writes the redacted object
//! on one line.
//!
//! The process is started for the first request. It is started again, at most once per second, for
//! the next request after the process has failed or was too slow.

use super::texts::PayloadTexts;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokenweir_core::clock;

/// A redactor that runs a command, and the process of the command.
pub(super) struct CommandRedactor {
    /// The program and its arguments.
    command_line: Vec<String>,
    /// The running process. `None`: the process was not started yet, or it failed.
    process: Option<RedactorProcess>,
    /// When the process was last started. `None`: never.
    last_started: Option<Instant>,
}

/// A running redactor process. Dropping this value kills the process.
struct RedactorProcess {
    child: Child,
    /// Sends requests to the thread that writes them to the process. The write needs a thread,
    /// because it blocks while the process does not read.
    requests: Sender<Vec<u8>>,
    /// Receives one response per request. `None`: the response is not valid.
    responses: Receiver<Option<PayloadTexts>>,
}

/// Minimum time between two starts of the process.
const RESTART_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of a response, in bytes. A longer response is an error.
const MAX_RESPONSE_BYTES: u64 = 64 << 20;

impl CommandRedactor {
    /// Creates a redactor for a command, without starting the process.
    pub(super) fn new(command_line: Vec<String>) -> Self {
        Self { command_line, process: None, last_started: None }
    }

    /// Redacts the texts with the process, and starts the process if it does not run. `None`: the
    /// process could not be started, failed or took longer than `timeout`. A process that failed or
    /// was too slow is killed.
    pub(super) fn redact(
        &mut self,
        texts: &PayloadTexts,
        timeout: Duration,
    ) -> Option<PayloadTexts> {
        if self.process.is_none() {
            self.start_process();
        }
        let process = self.process.as_ref()?;
        let redacted = process.requests.send(texts.to_json_line()).ok().and_then(|()| {
            let response = process.responses.recv_timeout(timeout).ok();
            response.flatten()
        });
        if redacted.is_none() {
            // The process is killed, because its late response could be taken for the response to
            // the next request.
            self.process = None;
        }
        redacted
    }

    /// Starts the process, unless the last start was less than [`RESTART_INTERVAL`] ago.
    fn start_process(&mut self) {
        let now = clock::now();
        if self
            .last_started
            .is_some_and(|last| now.saturating_duration_since(last) < RESTART_INTERVAL)
        {
            return;
        }
        self.last_started = Some(now);
        match RedactorProcess::start(&self.command_line) {
            Ok(process) => self.process = Some(process),
            Err(error) => tracing::warn!(
                %error,
                "redactor command could not be started: texts are dropped until a start succeeds"
            ),
        }
    }
}

impl RedactorProcess {
    fn start(command_line: &[String]) -> std::io::Result<Self> {
        let invalid_input = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let (program, arguments) = command_line.split_first().ok_or_else(invalid_input)?;
        let mut child = std::process::Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (requests, request_receiver) = channel();
        let (response_sender, responses) = channel();
        let process = Self { child, requests, responses };
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else { return Err(invalid_input()) };
        let thread = thread::Builder::new().name("redactor".to_owned());
        thread.spawn(move || exchange_lines(stdin, stdout, &request_receiver, &response_sender))?;
        Ok(process)
    }
}

impl Drop for RedactorProcess {
    fn drop(&mut self) {
        // `kill` fails if the process has ended. `wait` prevents a zombie process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs on a thread of its own: writes each request to the process and reads the response, until
/// the process ends or the redactor is dropped.
fn exchange_lines(
    mut stdin: ChildStdin,
    stdout: ChildStdout,
    request_receiver: &Receiver<Vec<u8>>,
    response_sender: &Sender<Option<PayloadTexts>>,
) {
    let mut stdout = BufReader::new(stdout);
    while let Ok(request) = request_receiver.recv() {
        if stdin.write_all(&request).and_then(|()| stdin.flush()).is_err() {
            return;
        }
        let mut response = Vec::new();
        match stdout.by_ref().take(MAX_RESPONSE_BYTES).read_until(b'\n', &mut response) {
            Ok(1..) => {}
            _ => return,
        }
        if response_sender.send(serde_json::from_slice(&response).ok()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;

//! Where words go: the gateway's own log to standard error, a line for each request to standard
//! output. Both through a thread of their own, so that a slow reader costs lines, never time.

use crate::config::{Format, Log};
use crate::telemetry::access_log::AccessLog;
use std::io::{IsTerminal, Write};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// The writers. Dropping it writes what is left.
pub(super) struct Logs {
    /// The log of the process is in JSON.
    pub(super) is_json: bool,
    access: Option<AccessLogWriter>,
    _guards: Vec<WorkerGuard>,
}

struct AccessLogWriter {
    is_json: bool,
    writer: NonBlocking,
}

/// Lines that wait for a slow reader; more are dropped.
const QUEUE: usize = 8_192;

/// Starts the log of the process. `RUST_LOG` wins over the level.
pub(super) fn start(log: Log) -> Logs {
    let builder = || NonBlockingBuilder::default().buffered_lines_limit(QUEUE).lossy(true);
    let (own, own_guard) = builder().finish(std::io::stderr());
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("warn,tokenweir={}", log.level.as_str())));
    let is_json = |is_terminal: bool| match log.format {
        Format::Json => true,
        Format::Human => false,
        Format::Auto => !is_terminal,
    };
    let is_terminal = std::io::stderr().is_terminal();
    let own_is_json = is_json(is_terminal);
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(own)
        .with_ansi(is_terminal)
        .with_target(false);
    // A second start in one process keeps the first one's log.
    let _ = if own_is_json {
        subscriber.json().flatten_event(true).try_init()
    } else {
        subscriber.try_init()
    };
    let (writer, access_guard) = builder().finish(std::io::stdout());
    let is_json = is_json(std::io::stdout().is_terminal());
    Logs {
        is_json: own_is_json,
        access: log.access.then_some(AccessLogWriter { is_json, writer }),
        _guards: vec![own_guard, access_guard],
    }
}

impl Logs {
    /// The sink that writes a line for each request, unless it is switched off.
    pub(super) fn access_log(&self) -> Option<AccessLog> {
        let AccessLogWriter { is_json, writer } = self.access.as_ref()?;
        let writer = writer.clone();
        // A full queue drops the line and counts it: it returns no error.
        let write = move |line: &str| drop(writer.clone().write_all(line.as_bytes()));
        Some(AccessLog::new(*is_json, Box::new(write)))
    }
}

//! Where words go: the gateway's own log to standard error, a line for each request to standard
//! output. Each through a thread of its own, so that a slow reader costs lines, never time.

use crate::config::{Format, Log};
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::batched::{Batched, Writing};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{BufWriter, IsTerminal};
use std::panic::PanicHookInfo;
use tokenweir_core::clock;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// The writers. Dropping it writes what is left.
pub(crate) struct Logs {
    /// The log of the process is in JSON.
    pub(crate) is_json: bool,
    access: Option<AccessLogWriter>,
    _own: WorkerGuard,
    _access: Writing,
}

struct AccessLogWriter {
    is_json: bool,
    per_second: Option<u32>,
    writer: Batched,
}

/// Lines that wait for a slow reader; more are dropped.
const QUEUE: usize = 8_192;

/// Starts the log of the process. `RUST_LOG` wins over the level.
pub(crate) fn start(log: &Log) -> Logs {
    let builder = NonBlockingBuilder::default().buffered_lines_limit(QUEUE).lossy(true);
    let (own, own_guard) = builder.finish(std::io::stderr());
    // What the client of Kubernetes says at each attempt, its source says once.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(format!("warn,kube=off,tokenweir={}", log.level.as_str()))
    });
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
    let (writer, writing) = Batched::start(BufWriter::new(std::io::stdout()));
    let is_json = is_json(std::io::stdout().is_terminal());
    let per_second = log.access_per_second;
    Logs {
        is_json: own_is_json,
        access: log.access.then_some(AccessLogWriter { is_json, per_second, writer }),
        _own: own_guard,
        _access: writing,
    }
}

/// Logs panics in the form of all other lines, from the start of the log on.
pub(crate) fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if tracing::dispatcher::has_been_set() {
            log_panic(panic);
        } else {
            before(panic);
        }
    }));
}

/// A message that was put together at run time may quote a prompt or a key, such as that of a text
/// which is cut inside a character: only one that stands in the program is logged.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    let message = panic.payload().downcast_ref::<&'static str>();
    let thread = std::thread::current();
    // Empty unless RUST_BACKTRACE asks for it.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
    tracing::error!(
        place,
        message,
        thread = thread.name(),
        backtrace = backtrace.map(tracing::field::display),
        "the gateway panicked; this is a defect of the gateway"
    );
}

impl Logs {
    /// The sink that writes a line for each request, unless it is switched off.
    pub(crate) fn access_log(&self) -> Option<AccessLog> {
        let AccessLogWriter { is_json, per_second, writer } = self.access.as_ref()?;
        let writer = writer.clone();
        let write = move |lines: String| writer.give(lines);
        Some(AccessLog::new(*is_json, Box::new(write)).with_limit(*per_second, clock::now()))
    }

    /// Counts the lines of it that its reader was too slow for.
    pub(crate) fn dropped(&self) -> Option<impl Fn() -> u64 + Send + Sync + use<>> {
        let writer = self.access.as_ref()?.writer.clone();
        Some(move || writer.dropped())
    }
}

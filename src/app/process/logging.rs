//! Starts the two logs of the gateway: the process log on standard error and the access log on standard output.
//! Each has a writer thread. If the reader of a log is too slow, lines are dropped and no request is delayed.

use super::line_limit::{LimitedWriter, LineLimit};
use crate::config::{LogConfig, LogFormat, LogLevel};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{BufWriter, IsTerminal};
use std::panic::PanicHookInfo;
use std::time::Duration;
use tokenweir_gateway::telemetry::access_log::AccessLog;
use tokenweir_gateway::telemetry::non_blocking_writer::{
    NonBlockingWriter, NonBlockingWriterGuard,
};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

/// The writers of the process log and the access log. Dropping this value flushes both logs.
pub(crate) struct LogWriters {
    pub(crate) is_json: bool,
    /// The writer of the access log. `None`: the access log is disabled.
    access_writer: Option<AccessLogWriter>,
    /// Filter of the process log. `None`: `RUST_LOG` determines it.
    level_filter: Option<reload::Handle<EnvFilter, Registry>>,
    _process_log_guard: NonBlockingWriterGuard,
    _access_log_guard: NonBlockingWriterGuard,
}

struct AccessLogWriter {
    is_json: bool,
    /// Maximum lines per second for routine requests, as in [`AccessLog::new`]. `None`: no limit.
    per_second: Option<u32>,
    writer: NonBlockingWriter,
}

/// Starts both logs. `RUST_LOG` takes precedence over `log.level`.
pub(crate) fn start(log: &LogConfig) -> LogWriters {
    let (process_writer, process_guard) =
        NonBlockingWriter::start_with_linger("process log", std::io::stderr(), Duration::ZERO);
    let from_environment = EnvFilter::try_from_default_env().ok();
    let is_fixed = from_environment.is_some();
    let filter = from_environment.unwrap_or_else(|| level_filter(log.level));
    let (filter, handle) = reload::Layer::new(filter);
    let is_json = |is_terminal: bool| match log.format {
        LogFormat::Json => true,
        LogFormat::Human => false,
        LogFormat::Auto => !is_terminal,
    };
    let is_terminal = std::io::stderr().is_terminal();
    let is_process_log_json = is_json(is_terminal);
    let limited_writer = move || LimitedWriter {
        inner: process_writer.clone(),
        is_json: is_process_log_json,
    };
    let format = tracing_subscriber::fmt::layer()
        .with_writer(limited_writer)
        .with_ansi(is_terminal)
        .with_target(false);
    let format = if is_process_log_json {
        format.json().flatten_event(true).boxed()
    } else {
        format.boxed()
    };
    let subscriber = Registry::default()
        .with(filter)
        .with(LineLimit::default())
        .with(format);
    // At a second start in one process, `try_init` fails, and the first subscriber stays active.
    let _ = subscriber.try_init();
    let (writer, access_guard) =
        NonBlockingWriter::start("access log", BufWriter::new(std::io::stdout()));
    let is_json = is_json(std::io::stdout().is_terminal());
    let per_second = log.access_per_second;
    LogWriters {
        is_json: is_process_log_json,
        access_writer: log.access.then_some(AccessLogWriter {
            is_json,
            per_second,
            writer,
        }),
        level_filter: (!is_fixed).then_some(handle),
        _process_log_guard: process_guard,
        _access_log_guard: access_guard,
    }
}

/// Builds the filter for a log level. Events of the `kube` crate are disabled, because it logs every failed
/// call of the Kubernetes API. The discovery source itself logs the first failure.
fn level_filter(level: LogLevel) -> EnvFilter {
    EnvFilter::new(format!("warn,kube=off,tokenweir={}", level.as_str()))
}

/// Installs a hook that writes panics to the process log, once the log has started.
pub(crate) fn install_panic_hook() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if tracing::dispatcher::has_been_set() {
            log_panic(panic);
        } else {
            previous(panic);
        }
    }));
}

/// Logs a panic. The message is logged only if it is a string literal of the program, because a message
/// formatted at run time may quote a prompt or a key. For example, a string index inside a multi-byte character
/// panics with a message that quotes the string.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(ToString::to_string);
    let message = panic.payload().downcast_ref::<&'static str>();
    let thread = std::thread::current();
    // Captured only if RUST_BACKTRACE is set.
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
    tracing::error!(
        place,
        message,
        thread = thread.name(),
        backtrace = backtrace.map(tracing::field::display),
        "the gateway panicked: this is a bug in tokenweir, please report it"
    );
}

impl LogWriters {
    /// Returns a function that changes the level of the process log. The function has no effect if
    /// `RUST_LOG` is set.
    pub(crate) fn level_setter(&self) -> impl Fn(LogLevel) + Send + Sync + use<> {
        let handle = self.level_filter.clone();
        move |level| {
            if let Some(handle) = &handle {
                // `reload` fails only if the subscriber is dropped, which lives as long as the process.
                let _ = handle.reload(level_filter(level));
            }
        }
    }

    /// Creates the sink that writes a line to the access log for each request. Also returns the writer, which
    /// counts the lines. `has_keys`: clients need API keys. `None`: the access log is disabled.
    pub(crate) fn access_log(&self, has_keys: bool) -> Option<(AccessLog, NonBlockingWriter)> {
        let AccessLogWriter {
            is_json,
            per_second,
            writer,
        } = self.access_writer.as_ref()?;
        let lines_writer = writer.clone();
        let write = move |lines: String| lines_writer.give(lines);
        let log = AccessLog::new(*is_json, Box::new(write), *per_second, has_keys);
        Some((log, writer.clone()))
    }
}

//! Limits the number of lines in the process log. Without a limit, a backend, another gateway, a client or a
//! collector could cause a line with each of its messages.
//!
//! Each kind of line has its own limit. The kind is the place in the source code that writes the line, together
//! with the backend that the line names. The next written line of a kind states the number of omitted lines.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Layer of the `tracing` subscriber that omits the log lines of a kind above its limit.
#[derive(Debug, Default)]
pub(super) struct LineLimit {
    budgets: Mutex<HashMap<LineKind, LineBudget>>,
}

/// The kind of a log line: the place in the source code that writes it, and the backend that it names. Empty:
/// no backend.
type LineKind = (Identifier, String);

/// The number of log lines of one kind that may still be written.
#[derive(Debug)]
struct LineBudget {
    lines: u32,
    /// When `lines` was last refilled, by one for each passed [`REFILL_INTERVAL`].
    refilled_at: Instant,
    omitted: u64,
}

/// Writes a log line with the number of omitted lines of its kind.
pub(super) struct LimitedWriter<W> {
    pub(super) inner: W,
    pub(super) is_json: bool,
}

/// Number of log lines of one kind that can be written at once.
const BURST: u32 = 20;
/// Time after which one more log line of the same kind can be written.
const REFILL_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of kinds with a budget of their own. All further kinds from the same place in the source code
/// share one budget.
const MAX_KINDS: usize = 4_096;

thread_local! {
    /// Number of lines that were omitted before the line that this thread writes now.
    static OMITTED: Cell<u64> = const { Cell::new(0) };
}

impl LineLimit {
    /// Takes one line from the budget of its kind. Returns the number of lines of the kind that were omitted
    /// since the last written one. `None`: this line must be omitted.
    fn take(&self, kind: LineKind, now: Instant) -> Option<u64> {
        let mut budgets = lock(&self.budgets);
        let is_known = budgets.len() < MAX_KINDS || budgets.contains_key(&kind);
        let kind = if is_known {
            kind
        } else {
            (kind.0, String::new())
        };
        let new = || LineBudget {
            lines: BURST,
            refilled_at: now,
            omitted: 0,
        };
        budgets.entry(kind).or_insert_with(new).take(now)
    }
}

impl LineBudget {
    /// Takes one line from this budget. Returns the number of lines that were omitted since the last written
    /// one. `None`: the budget is empty, and the line must be omitted.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let elapsed = now.saturating_duration_since(self.refilled_at);
        let refills = u32::try_from(elapsed.as_secs() / REFILL_INTERVAL.as_secs());
        if let Ok(refills @ 1..) = refills {
            self.lines = self.lines.saturating_add(refills).min(BURST);
            self.refilled_at = now;
        }
        if self.lines == 0 {
            self.omitted += 1;
            return None;
        }
        self.lines -= 1;
        Some(std::mem::take(&mut self.omitted))
    }
}

impl<S: Subscriber> Layer<S> for LineLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // Lines of the levels debug and trace are never omitted.
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut backend = BackendName::default();
        event.record(&mut backend);
        let omitted = self.take((metadata.callsite(), backend.0), clock::now());
        OMITTED.set(omitted.unwrap_or(0));
        omitted.is_some()
    }
}

/// The value of the field `backend` of a log event. Empty: the event has no such field.
#[derive(Default)]
struct BackendName(String);

impl Visit for BackendName {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "backend" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<W: Write> Write for LimitedWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let omitted = OMITTED.replace(0);
        if omitted == 0 {
            return self.inner.write(line);
        }
        let (end, field) = if self.is_json {
            ("}\n", format!(",\"omitted_lines\":{omitted}}}\n"))
        } else {
            ("\n", format!(" omitted_lines={omitted}\n"))
        };
        let start = line.strip_suffix(end.as_bytes()).unwrap_or(line);
        self.inner.write_all(&[start, field.as_bytes()].concat())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tracing_subscriber::Registry;
    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Lines {
        type Writer = LimitedWriter<Self>;

        fn make_writer(&'a self) -> Self::Writer {
            LimitedWriter {
                inner: self.clone(),
                is_json: true,
            }
        }
    }

    fn warn_of(backend: &str) {
        tracing::warn!(backend = %backend, "events cannot be applied");
    }

    #[test]
    fn a_flood_suppresses_only_its_kind() {
        let lines = Lines::default();
        let format = tracing_subscriber::fmt::layer()
            .json()
            .with_writer(lines.clone());
        let subscriber = Registry::default().with(LineLimit::default()).with(format);
        tracing::subscriber::with_default(subscriber, || {
            (0..1_000).for_each(|_| warn_of("a"));
            warn_of("b");
            tracing::info!("another place");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), BURST as usize + 2, "{text}");
        assert!(
            text.contains(r#""backend":"b""#) && text.contains("another place"),
            "{text}"
        );
    }

    #[test]
    fn a_line_counts_the_omitted_lines() {
        let start = clock::now();
        let mut budget = LineBudget {
            lines: BURST,
            refilled_at: start,
            omitted: 0,
        };
        let written = (0..100).filter(|_| budget.take(start).is_some()).count();
        assert_eq!(written, BURST as usize);
        assert_eq!(
            budget.take(start + REFILL_INTERVAL),
            Some(100 - u64::from(BURST))
        );
        assert_eq!(budget.take(start + REFILL_INTERVAL), None);
        OMITTED.set(7);
        let lines = Lines::default();
        let mut writer = LimitedWriter {
            inner: lines.clone(),
            is_json: true,
        };
        writer.write_all(b"{\"message\":\"x\"}\n").unwrap();
        OMITTED.set(7);
        writer.is_json = false;
        writer.write_all(b"WARN x\n").unwrap();
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "{\"message\":\"x\",\"omitted_lines\":7}\nWARN x omitted_lines=7\n"
        );
    }
}

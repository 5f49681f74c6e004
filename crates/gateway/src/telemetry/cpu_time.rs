//! CPU time of telemetry, by kind of work ([`TelemetryPart`]): the CPU time that a thread uses while it does
//! the work.
//!
//! The times are in a static variable, because they belong to the process, like `process_cpu_seconds_total`. If
//! a measurement contains another one, the inner time counts only for the inner part.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;
use tokenweir_protocol::atomic::AtomicCounter;
use tokenweir_protocol::clock;
use tokenweir_protocol::named_enum;

named_enum! {
    /// A part of telemetry whose CPU time is measured.
    pub enum TelemetryPart {
        /// The processing of request records: sinks build metrics, spans and log lines from them.
        Records = "records",
        /// The writing or sending of the access log, the trace capture, the payload log and quality
        /// samples.
        Logs = "logs",
        /// Rendering of `/metrics`.
        MetricsPage = "metrics_page",
        /// Export of spans over OTLP.
        SpanExport = "span_export",
    }
}

/// CPU time of each part since the start of the process, in the order of [`TelemetryPart::ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TelemetryCpuTimes([Duration; TelemetryPart::ALL.len()]);

/// A running measurement of the CPU time of the current thread. The time is added to `part` when this value
/// is dropped.
pub(crate) struct Measurement {
    part: TelemetryPart,
    started: Duration,
    /// CPU time of earlier measurements inside the same surrounding measurement. `end` adds the time of this
    /// measurement to it.
    earlier_nested: Duration,
}

static CPU_NANOSECONDS: [AtomicCounter; TelemetryPart::ALL.len()] =
    [const { AtomicCounter::new() }; TelemetryPart::ALL.len()];

thread_local! {
    /// CPU time of the measurements that have ended inside the thread's running measurement.
    static NESTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Measures the CPU time of the current thread until the returned value is dropped. The value must be
/// dropped on the same thread.
pub(crate) fn start(part: TelemetryPart) -> Measurement {
    let earlier_nested = NESTED.replace(Duration::ZERO);
    Measurement {
        part,
        started: clock::thread_cpu_time(),
        earlier_nested,
    }
}

/// Runs `work` and adds its CPU time to `part`.
pub fn measure<R>(part: TelemetryPart, work: impl FnOnce() -> R) -> R {
    let _measurement = start(part);
    work()
}

/// Runs `future` and adds the CPU time of its polls to `part`. Tasks that the future spawns are not
/// included.
pub(crate) async fn measure_future<F: Future>(part: TelemetryPart, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| measure(part, || future.as_mut().poll(cx))).await
}

impl TelemetryCpuTimes {
    /// Reads the CPU time of each part.
    pub fn snapshot() -> Self {
        let to_duration = |nanos: &AtomicCounter| Duration::from_nanos(nanos.get());
        Self(CPU_NANOSECONDS.each_ref().map(to_duration))
    }

    /// The CPU time of one part, without the parts measured inside it.
    pub fn of(&self, part: TelemetryPart) -> Duration {
        self.0[part as usize]
    }
}

impl Measurement {
    /// Ends the measurement. Returns its CPU time, without the time of measurements inside it.
    fn end(&self) -> Duration {
        let total = clock::thread_cpu_time().saturating_sub(self.started);
        total.saturating_sub(NESTED.replace(self.earlier_nested + total))
    }
}

impl Drop for Measurement {
    fn drop(&mut self) {
        let nanos = u64::try_from(self.end().as_nanos()).unwrap_or(u64::MAX);
        CPU_NANOSECONDS[self.part as usize].add(nanos);
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::mem::ManuallyDrop;

    /// Uses at least `amount` of CPU time.
    fn use_cpu(amount: Duration) {
        let end = clock::thread_cpu_time() + amount;
        while clock::thread_cpu_time() < end {
            black_box((0..1_000_u32).sum::<u32>());
        }
    }

    #[test]
    fn nested_work_counts_for_its_part() {
        let amount = Duration::from_millis(10);
        let whole = clock::thread_cpu_time();
        let outer = ManuallyDrop::new(start(TelemetryPart::MetricsPage));
        let work = || {
            let inner = ManuallyDrop::new(start(TelemetryPart::Records));
            use_cpu(amount * 2);
            inner.end()
        };
        let first = work();
        use_cpu(amount);
        let inner = first + work();
        let outer = outer.end();
        let whole = clock::thread_cpu_time().saturating_sub(whole);
        assert!(
            inner >= amount * 4 && outer >= amount,
            "{inner:?} {outer:?}"
        );
        assert!(inner + outer <= whole, "{inner:?} {outer:?} {whole:?}");
        assert_eq!(NESTED.replace(Duration::ZERO), inner + outer);
    }

    #[tokio::test]
    async fn the_cpu_time_of_polls_is_measured() {
        let before = TelemetryCpuTimes::snapshot().of(TelemetryPart::SpanExport);
        let amount = Duration::from_millis(5);
        measure_future(TelemetryPart::SpanExport, async {
            use_cpu(amount);
            tokio::task::yield_now().await;
            use_cpu(amount);
        })
        .await;
        let after = TelemetryCpuTimes::snapshot().of(TelemetryPart::SpanExport);
        assert!(after >= before + amount * 2);
    }
}

//! Numbers of metrics pushes by result.

use super::transport::MetricsPushError;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of metrics pushes by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MetricsPushCounts {
    /// Pushes whose points the collector accepted completely.
    pub ok: u64,
    /// Pushes that failed, timed out or were accepted only in part.
    pub failed: u64,
}

impl MetricsPushCounts {
    /// The counts with the names of the results.
    pub const fn by_result(&self) -> [(&'static str, u64); 2] {
        [("ok", self.ok), ("failed", self.failed)]
    }
}

/// Counts metrics pushes by result. Clones share their counts.
#[derive(Debug, Clone, Default)]
pub struct MetricsPushStats(Arc<MetricsPushCounters>);

#[derive(Debug, Default)]
struct MetricsPushCounters {
    ok: AtomicU64,
    failed: AtomicU64,
    /// Whether the last push failed.
    is_failing: AtomicBool,
}

// === impl MetricsPushStats ===

impl MetricsPushStats {
    /// The counts since the start.
    pub fn counts(&self) -> MetricsPushCounts {
        let MetricsPushCounters { ok, failed, .. } = &*self.0;
        MetricsPushCounts { ok: ok.load(Ordering::Relaxed), failed: failed.load(Ordering::Relaxed) }
    }

    /// Counts one push by its result. Logs the first of several consecutive failures, and the first
    /// success after a failure.
    pub(super) fn record_result(&self, result: Result<(), MetricsPushError>) {
        let MetricsPushCounters { ok, failed, is_failing } = &*self.0;
        let was_failing = is_failing.swap(result.is_err(), Ordering::Relaxed);
        match result {
            Ok(()) => {
                ok.fetch_add(1, Ordering::Relaxed);
                if was_failing {
                    tracing::info!("metrics push recovered");
                }
            }
            Err(error) => {
                failed.fetch_add(1, Ordering::Relaxed);
                if !was_failing {
                    tracing::warn!(%error, "metrics push failed: trying again after each interval");
                }
            }
        }
    }
}

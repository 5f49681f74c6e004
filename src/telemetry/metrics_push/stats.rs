//! Counts of pushes by result.

use super::transport::MetricsPushError;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pushes by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MetricsPushCounts {
    /// Pushes that the collector accepted completely.
    pub ok: u64,
    /// Pushes that failed or timed out.
    pub failed: u64,
}

impl MetricsPushCounts {
    /// The counts with the names of the results.
    pub const fn by_result(&self) -> [(&'static str, u64); 2] {
        [("ok", self.ok), ("failed", self.failed)]
    }
}

/// Counts pushes. Clones share their counts.
#[derive(Debug, Clone, Default)]
pub struct MetricsPushStats(Arc<MetricsPushCounters>);

#[derive(Debug, Default)]
struct MetricsPushCounters {
    ok: AtomicU64,
    failed: AtomicU64,
    is_failing: AtomicBool,
}

// === impl MetricsPushStats ===

impl MetricsPushStats {
    /// The counts so far.
    pub fn counts(&self) -> MetricsPushCounts {
        let MetricsPushCounters { ok, failed, .. } = &*self.0;
        MetricsPushCounts { ok: ok.load(Ordering::Relaxed), failed: failed.load(Ordering::Relaxed) }
    }

    /// Counts a push. Logs the first failure and the recovery.
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

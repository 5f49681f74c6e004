//! Learns from the metrics of an engine how many sequences it runs at once (vLLM's
//! `--max-num-seqs`). No engine reports that number.
//!
//! While requests wait in the engine although its KV cache has free blocks, the number of running
//! requests stays at the number of slots, because each request that ends is replaced at once. An
//! engine that receives prompts faster than it computes them also has waiting requests, but its
//! number of running requests varies. The greatest number of running requests is therefore taken
//! as the number of slots once enough reports confirm it and few contradict it. Reports count only
//! if requests have ended since the last report that counted.

use super::LoadReport;
use tokenweir_protocol::atomic::AtomicF64;

/// Estimated number of slots of one engine. One task writes the reports, one at a time. Routing
/// decisions read `estimate` at any time.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct SlotEstimator {
    /// The estimated number of slots. 0: not known.
    estimate: AtomicF64,
    /// Greatest number of running requests in a report.
    max_running: AtomicF64,
    /// Decayed number of requests that ended before reports with about `max_running` running requests.
    confirmations: AtomicF64,
    /// Decayed number of requests that ended before reports with clearly fewer running requests.
    contradictions: AtomicF64,
    /// Number of ended requests at the last report that counted.
    ended: AtomicF64,
}

/// Share of the greatest number of running requests from which on a report confirms that number as
/// the number of slots. It is less than 1 because vLLM counts running requests after ended requests
/// have left and before others replace them.
const CONFIRMING_OCCUPANCY: f64 = 0.85;
/// Greatest number of confirmations by one report, because one report may be a coincidence.
const MAX_CONFIRMATIONS_PER_REPORT: f64 = 2.0;
/// Number of confirmations from which on the estimate counts as known.
const MIN_CONFIRMATIONS: f64 = 3.5;
/// Least ratio of confirmations to contradictions with which the estimate counts as known.
const MIN_CONFIRMATION_RATIO: f64 = 3.0;
/// Contradictions without a confirmation after which the greatest number of running requests is
/// learned again: one report had a number that the engine does not run.
const MAX_CONTRADICTIONS: f64 = 20.0;
/// Factor by which each report that counts reduces the weight of the earlier ones.
const DECAY_FACTOR: f64 = 0.98;
/// KV cache usage, from 0 to 1, from which on requests may wait for KV blocks instead of slots.
const MAX_KV_USAGE: f64 = 0.9;

// === impl SlotEstimator ===

impl SlotEstimator {
    /// Returns the number of sequence slots of the engine. `None`: not known.
    pub(super) fn known(&self) -> Option<f64> {
        Some(self.estimate.get()).filter(|slots| *slots >= 1.0)
    }

    /// Seconds until a slot is free for one more request, with `requests` requests at the backend
    /// and a mean response time. It is assumed that slots become free evenly over the mean response
    /// time. 0: the number of slots or the response time is not known.
    pub(super) fn wait(&self, requests: f64, response_seconds: Option<f64>) -> f64 {
        let (Some(slots), Some(response_seconds)) = (self.known(), response_seconds) else {
            return 0.0;
        };
        (requests + 1.0 - slots).max(0.0) * response_seconds / slots
    }

    /// Takes a report into account. `ended`: number of requests of this gateway that have ended at
    /// the backend.
    pub(super) fn on_report(&self, report: &LoadReport, ended: u32) {
        let running = report.running;
        if running > self.max_running.get() {
            self.forget();
            self.max_running.set(running);
            self.ended.set(ended.into());
            return;
        }
        let has_free_blocks = report.kv_usage.is_none_or(|usage| usage < MAX_KV_USAGE);
        let ended_since =
            (f64::from(ended) - self.ended.get()).clamp(0.0, MAX_CONFIRMATIONS_PER_REPORT);
        if report.waiting < 1.0 || !has_free_blocks || ended_since < 1.0 {
            return;
        }
        self.ended.set(ended.into());
        let is_full = running >= CONFIRMING_OCCUPANCY * self.max_running.get();
        let [full, other] = if is_full { [ended_since, 0.0] } else { [0.0, ended_since] };
        let confirmations = DECAY_FACTOR * self.confirmations.get() + full;
        let contradictions = DECAY_FACTOR * self.contradictions.get() + other;
        self.confirmations.set(confirmations);
        self.contradictions.set(contradictions);
        let is_known = confirmations >= MIN_CONFIRMATIONS
            && confirmations >= MIN_CONFIRMATION_RATIO * contradictions;
        self.estimate.set(if is_known { self.max_running.get() } else { 0.0 });
        if contradictions >= MAX_CONTRADICTIONS && confirmations < 1.0 {
            self.forget();
        }
    }

    /// Resets the estimate. Reasons: the engine restarted, maybe with other settings; it runs more
    /// requests than before; or it never again ran as many as one report showed.
    pub(super) fn forget(&self) {
        for value in [
            &self.estimate,
            &self.max_running,
            &self.confirmations,
            &self.contradictions,
            &self.ended,
        ] {
            value.set(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_report(running: f64, waiting: f64) -> LoadReport {
        LoadReport { kv_usage: Some(0.3), waiting, running, ..LoadReport::default() }
    }

    /// The estimate after these reports, with one ended request before each.
    fn estimate_after(reports: impl IntoIterator<Item = LoadReport>) -> Option<f64> {
        let slots = SlotEstimator::default();
        for (ended, report) in (1..).zip(reports) {
            slots.on_report(&report, ended);
        }
        slots.known()
    }

    #[test]
    fn constant_running_with_waiting_shows_the_slots() {
        let plateau = [16.0, 16.0, 15.0, 16.0, 16.0];
        let reports = |waiting| plateau.map(|running| load_report(running, waiting));
        assert_eq!(estimate_after(reports(9.0)), Some(16.0));
        assert_eq!(estimate_after(reports(0.0)), None, "no request waited");
        let full = reports(9.0).map(|report| LoadReport { kv_usage: Some(0.97), ..report });
        assert_eq!(estimate_after(full), None, "they waited for KV blocks");
    }

    #[test]
    fn reports_without_ended_requests_count_once() {
        let slots = SlotEstimator::default();
        for _ in 0..50 {
            slots.on_report(&load_report(16.0, 9.0), 1);
        }
        assert_eq!(slots.known(), None, "one long prompt may be computed all that time");
    }

    #[test]
    fn an_engine_in_prefill_gives_no_estimate() {
        let running = [3.0, 7.0, 12.0, 9.0, 6.0, 11.0, 8.0, 12.0, 5.0, 10.0, 7.0, 9.0];
        let reports = running.repeat(5).into_iter().map(|running| load_report(running, 3.0));
        assert_eq!(estimate_after(reports), None);
    }

    #[test]
    fn more_running_or_a_restart_resets_it() {
        let slots = SlotEstimator::default();
        let report = |running, from: u32| {
            (from..from + 6).for_each(|ended| slots.on_report(&load_report(running, 5.0), ended));
            slots.known()
        };
        assert_eq!(report(16.0, 0), Some(16.0));
        slots.on_report(&load_report(20.0, 0.0), 10);
        assert_eq!(slots.known(), None);
        assert_eq!(report(20.0, 11), Some(20.0));
        slots.forget();
        assert_eq!(slots.known(), None);
        assert_eq!(report(8.0, 20), Some(8.0));
    }

    #[test]
    fn fewer_running_requests_discard_the_estimate() {
        let plateau = vec![load_report(16.0, 5.0); 10];
        let below = vec![load_report(9.0, 5.0); 10];
        assert_eq!(estimate_after(plateau.clone()), Some(16.0));
        assert_eq!(estimate_after([plateau, below].concat()), None);
    }
}

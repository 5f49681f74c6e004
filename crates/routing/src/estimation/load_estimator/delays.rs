//! The present delays of a backend: overdue outputs, and the backlog that is not computed yet.

use super::LoadEstimator;
use crate::PrefillCost;
use crate::estimation::limits::{at_least_0, at_most};
use crate::estimation::reservation::LocalLoad;
use std::sync::atomic::Ordering;

impl LoadEstimator {
    /// Seconds for which the engine seems to be at a standstill. Either the oldest request without output is
    /// overdue and no other request has had output since, or all streams have stalled.
    pub(super) fn overdue(&self, local_load: &LocalLoad, now: f64) -> f64 {
        let stalled = self.silent();
        if stalled < self.decoding_streams.load(Ordering::Relaxed) {
            return 0.0; // the engine generates output
        }
        let without_output = at_least_0(now - self.last_output_at.get());
        let overdue = at_most(self.pending_outputs.overdue(now), without_output);
        if stalled == 0 || stalled < local_load.in_flight.saturating_sub(local_load.pending) {
            return overdue;
        }
        overdue.max(now - self.stalled_since.get())
    }

    /// Weight of the learned prefill cost, from 0 to 1. The weight falls while no stream waits for its first
    /// output. Without this, a backend that was slow once would never get a request again.
    pub(super) fn prefill_freshness(&self, local_load: &LocalLoad, now: f64) -> f64 {
        let idle = if local_load.pending > 0 {
            0.0
        } else {
            now - self.prefill_progress_at.get()
        };
        self.learned_estimates.freshness(at_least_0(idle))
    }

    /// Prompt tokens that the engine still has to compute for requests of others. `external_waiting`: the
    /// waiting requests of others in the last report.
    pub(super) fn backlog_of_others(
        &self,
        external_waiting: f64,
        prefill: &PrefillCost,
        now: f64,
    ) -> f64 {
        let reported = external_waiting * self.learned_estimates.prompt_tokens();
        let by_peers = self.other_backlogs.tokens(prefill.per_token, now);
        if reported > by_peers {
            reported
        } else {
            by_peers
        }
    }

    /// Prompt tokens that the engine still has to compute: the backlog, minus the part of the prompt in prefill
    /// that is probably computed by now. The gateway does not know which prompt is in prefill, so it assumes
    /// the mean length.
    pub(super) fn remaining_backlog(
        &self,
        local_load: &LocalLoad,
        prefill: &PrefillCost,
        now: f64,
    ) -> f64 {
        let unobserved = at_least_0(self.unobserved_prefill_until.get() - now);
        if local_load.pending == 0 && unobserved <= 0.0 {
            return 0.0;
        }
        let speed = prefill.per_token.recip();
        let backlog = local_load.backlog as f64;
        let since = at_least_0(now - self.prefill_progress_at.get());
        let mean = backlog / f64::from(local_load.pending.max(1));
        unobserved * speed + at_least_0(backlog - at_most(since * speed, mean))
    }
}

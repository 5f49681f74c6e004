//! Requests whose prompts other backends compute. They add no prefill to this backend, and their times do not
//! show its prefill speed.

use super::LoadEstimator;
use crate::{Candidate, PrefillCost, Reservation, kv_aware};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The predicted duration of a prefill leg, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct PredictedLeg {
    /// Predicted seconds of the leg for the prompt of the request.
    pub seconds: f64,
    /// Predicted seconds of the leg for an empty prompt.
    pub base: f64,
}

impl LoadEstimator {
    /// Moves the prefill of a request out of this backend's load (`is_remote`), or back into it.
    pub fn move_prefill(&self, reservation: &mut Reservation, is_remote: bool) {
        if reservation.remote.is_some() == is_remote {
            return;
        }
        let moved = reservation.remote.unwrap_or(reservation.uncached);
        reservation.uncached = if is_remote { 0 } else { moved };
        reservation.remote = is_remote.then_some(moved);
        if !reservation.is_stream {
            let work = moved as f64 * self.learned_estimates.prefill().per_token;
            let work = if is_remote { -work } else { work };
            self.unobserved_prefill_until
                .set(self.unobserved_prefill_until.get() + work);
        } else if reservation.is_pending && is_remote {
            self.backlog_tokens.fetch_sub(moved, Ordering::Relaxed);
        } else if reservation.is_pending {
            self.backlog_tokens.fetch_add(moved, Ordering::Relaxed);
        }
    }

    /// Records that the first output of a decode leg came after `seconds`.
    pub fn on_remote_prompt(&self, seconds: f64, now: Instant) {
        self.remote_prompts.learn(seconds, self.seconds(now));
    }

    /// Predicted seconds from sending a decode leg to its first output. `candidate`: the estimates of this
    /// backend for the whole request. `leg`: the prefill leg at the other backend.
    ///
    /// The queue gets shorter during the prefill leg. If a backend has many prefills, its `base` includes steps
    /// with prompts of other requests. The decode leg does not wait for these steps, so the lesser `base`
    /// counts.
    pub fn remote_prompt_ttft(
        &self,
        candidate: &Candidate,
        leg: PredictedLeg,
        settings: &kv_aware::KvAwareSettings,
        now: Instant,
    ) -> f64 {
        let cost = candidate.prefill;
        let prefilled = Candidate {
            cached: candidate.prompt,
            backlog: (candidate.backlog - leg.seconds / cost.per_token).max(0.0),
            prefill: PrefillCost {
                base: cost.base.min(leg.base),
                ..cost
            },
            ..*candidate
        };
        let least = kv_aware::ttft(settings, &prefilled, false);
        self.remote_prompts.expected(least, self.seconds(now))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::new_estimator;
    use super::*;
    use crate::PromptFingerprint;
    use std::time::Duration;

    fn prompt() -> PromptFingerprint {
        PromptFingerprint::new(1, [&[b'x'; 4_000][..]].into_iter())
    }

    #[test]
    fn a_moved_prompt_is_no_backlog_here() {
        let (load, now) = new_estimator();
        let candidate = load.candidate(&prompt(), now);
        let mut reservation = load.reserve(&candidate, &prompt(), true, now);
        let whole = load.local_load().backlog;
        assert!(whole > 0);
        let mut moved = |is_remote| {
            load.move_prefill(&mut reservation, is_remote);
            (load.local_load().backlog, reservation.prompt_tokens())
        };
        let tokens = candidate.prompt as u64;
        assert_eq!(
            [true, true, false, false, true].map(&mut moved),
            [
                (0, tokens),
                (0, tokens),
                (whole, tokens),
                (whole, tokens),
                (0, tokens)
            ]
        );
        load.first_output(&mut reservation, now + Duration::from_secs(9));
        assert_eq!(
            load.learned().ttft(),
            None,
            "the time is not that of a prefill"
        );
        load.release(reservation, now);
        assert_eq!(
            (load.local_load().backlog, load.local_load().in_flight),
            (0, 0)
        );
    }

    #[test]
    fn the_leg_waits_for_the_remaining_queue() {
        let (load, now) = new_estimator();
        let settings = kv_aware::KvAwareSettings::default();
        let prefill = PrefillCost {
            base: 0.5,
            per_token: 1e-3,
        };
        let busy = Candidate {
            backlog: 2_000.0,
            prefill,
            ..load.candidate(&prompt(), now)
        };
        let after = |seconds, candidate| {
            let leg = PredictedLeg { seconds, base: 0.1 };
            load.remote_prompt_ttft(&candidate, leg, &settings, now)
        };
        let waits = [after(0.0, busy), after(1.0, busy), after(5.0, busy)];
        for (wait, expected) in waits.into_iter().zip([2.1, 1.1, 0.1]) {
            assert!((wait - expected).abs() < 1e-9, "{waits:?}");
        }
    }

    #[test]
    fn the_delay_of_a_slow_leg_halves() {
        let (load, now) = new_estimator();
        let candidate = load.candidate(&prompt(), now);
        let settings = kv_aware::KvAwareSettings::default();
        let base = candidate.prefill.base;
        let leg = PredictedLeg { seconds: 0.0, base };
        let predicted = |at| load.remote_prompt_ttft(&candidate, leg, &settings, at);
        let least = predicted(now);
        assert!(least < kv_aware::ttft(&settings, &candidate, false));
        let at = now + Duration::from_secs(1);
        load.on_remote_prompt(least + 2.0, at);
        let excess = |seconds| predicted(at + Duration::from_secs(seconds)) - least;
        assert!((excess(0) - 2.0).abs() < 1e-9 && (excess(60) - 1.0).abs() < 1e-9);
    }
}

//! How many sequences an engine runs at once (vLLM: `--max-num-seqs`), learned from its metrics: no
//! engine tells it.
//!
//! While requests wait in the engine although its KV cache has room, the number that runs stays at
//! the number of slots: each request that ends is replaced at once. An engine whose prompts arrive
//! faster than it computes them has waiting requests, too, but the number that runs goes up and down.
//! So the largest number that was seen is the number of slots once it has been confirmed several times
//! by pages between which requests have ended, and contradicted rarely.

use super::Report;
use super::said::Real;

/// What is known of the slots of one engine. Reports come from one task, one at a time; decisions
/// read `known` at any time.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Slots {
    /// 0: not known.
    known: Real,
    /// The most that ran at once.
    most: Real,
    /// Pages with waiting requests on which almost as many ran, and on which fewer did.
    confirmed: Real,
    contradicted: Real,
    /// Requests that had ended at the last page that was counted.
    ended: Real,
}

/// The share of the slots that must be taken to confirm them: vLLM counts the running requests after
/// those that ended in the last step have left, and before others take their place.
const FULL: f64 = 0.85;
/// Requests that ended between two pages count for at most this many confirmations: one page may be a
/// coincidence.
const MOST_AT_ONCE: f64 = 2.0;
/// Confirmations after which the slots are known.
const ENOUGH: f64 = 3.5;
/// Confirmations for each contradiction that there must be.
const RATIO: f64 = 3.0;
/// What an earlier page weighs after each page that counts.
const MEMORY: f64 = 0.98;
/// With more than this share of the KV cache in use, requests may wait for blocks instead of slots.
const MOST_KV_USAGE: f64 = 0.9;

// === impl Slots ===

impl Slots {
    pub(super) fn new() -> Self {
        let [known, most, confirmed, contradicted, ended] = [0.0; 5].map(Real::new);
        Self { known, most, confirmed, contradicted, ended }
    }

    /// The number of slots. `None`: not known.
    pub(super) fn known(&self) -> Option<f64> {
        Some(self.known.get()).filter(|slots| *slots >= 1.0)
    }

    /// The engine has told this, after so many of our requests to it had ended.
    pub(super) fn on_report(&self, report: &Report, ended: u32) {
        let running = report.running;
        if running > self.most.get() {
            self.forget();
            self.most.set(running);
            self.ended.set(ended.into());
            return;
        }
        let is_for_want_of_slots = report.kv_usage.is_none_or(|usage| usage < MOST_KV_USAGE);
        let turned_over = (f64::from(ended) - self.ended.get()).clamp(0.0, MOST_AT_ONCE);
        if report.waiting < 1.0 || !is_for_want_of_slots || turned_over < 1.0 {
            return;
        }
        self.ended.set(ended.into());
        let is_full = running >= FULL * self.most.get();
        let [confirmed, contradicted] =
            [(&self.confirmed, is_full), (&self.contradicted, !is_full)].map(|(count, is_it)| {
                let next = MEMORY * count.get() + if is_it { turned_over } else { 0.0 };
                count.set(next);
                next
            });
        let is_known = confirmed >= ENOUGH && confirmed >= RATIO * contradicted;
        self.known.set(if is_known { self.most.get() } else { 0.0 });
    }

    /// The engine has begun anew, maybe with other settings; or it runs more than it was believed to
    /// be able to.
    pub(super) fn forget(&self) {
        for value in [&self.known, &self.most, &self.confirmed, &self.contradicted, &self.ended] {
            value.set(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(running: f64, waiting: f64) -> Report {
        Report { kv_usage: Some(0.3), waiting, running, ..Report::default() }
    }

    /// The slots that are known after these pages, between each of which a request ended.
    fn after(pages: impl IntoIterator<Item = Report>) -> Option<f64> {
        let slots = Slots::new();
        for (ended, page) in (1..).zip(pages) {
            slots.on_report(&page, ended);
        }
        slots.known()
    }

    #[test]
    fn a_plateau_of_running_requests_while_others_wait_is_the_number_of_slots() {
        let plateau = [16.0, 16.0, 15.0, 16.0, 16.0];
        assert_eq!(after(plateau.map(|running| page(running, 9.0))), Some(16.0));
        assert_eq!(after(plateau.map(|running| page(running, 0.0))), None, "none waited");
        let full = plateau.map(|running| Report { kv_usage: Some(0.97), ..page(running, 9.0) });
        assert_eq!(after(full), None, "they waited for KV blocks");
    }

    #[test]
    fn pages_between_which_nothing_ended_say_the_same_thing_once() {
        let slots = Slots::new();
        for _ in 0..50 {
            slots.on_report(&page(16.0, 9.0), 1);
        }
        assert_eq!(slots.known(), None, "one long prompt may be computed all that time");
    }

    #[test]
    fn an_engine_that_waits_for_prompts_to_be_computed_does_not_look_full() {
        let running = [3.0, 7.0, 12.0, 9.0, 6.0, 11.0, 8.0, 12.0, 5.0, 10.0, 7.0, 9.0];
        assert_eq!(after(running.repeat(5).into_iter().map(|running| page(running, 3.0))), None);
    }

    #[test]
    fn more_running_requests_than_slots_and_a_restart_make_it_learn_again() {
        let slots = Slots::new();
        let tell = |running, from: u32| {
            (from..from + 6).for_each(|ended| slots.on_report(&page(running, 5.0), ended));
            slots.known()
        };
        assert_eq!(tell(16.0, 0), Some(16.0));
        slots.on_report(&page(20.0, 0.0), 10);
        assert_eq!(slots.known(), None);
        assert_eq!(tell(20.0, 11), Some(20.0));
        slots.forget();
        assert_eq!(slots.known(), None);
        assert_eq!(tell(8.0, 20), Some(8.0));
    }

    #[test]
    fn slots_that_do_not_hold_are_forgotten() {
        let plateau = vec![page(16.0, 5.0); 10];
        let below = vec![page(9.0, 5.0); 10];
        assert_eq!(after(plateau.clone()), Some(16.0));
        assert_eq!(after([plateau, below].concat()), None);
    }
}

//! One request at a replica: a place there, and what was promised to it. It learns from the
//! answer as it passes, and dropping it gives the place back.

use super::Backend;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::observe::Replica;
use tokenweir_core::record::{Condition, Observed, RecentTimes, UsageSource};
use tokenweir_core::routing::{Candidate, Counts, Promise, Prompt};

/// A place at a replica. Dropping it gives it back.
#[derive(Debug)]
pub struct Lease(Arc<Claim>);

/// What a request has at its replica, as its exchange sees it.
#[derive(Debug)]
struct Claim {
    backend: Arc<Backend>,
    promise: Mutex<Promise>,
}

impl Lease {
    pub(super) fn new(
        backend: Arc<Backend>,
        candidate: &Candidate,
        prompt: &Prompt,
        is_stream: bool,
        now: Instant,
    ) -> Self {
        if backend.in_flight() == 0 {
            backend.on_first_request();
        }
        let promise = backend.ledger.promise(candidate, prompt, is_stream, now);
        backend.show(now);
        Self(Arc::new(Claim { backend, promise: Mutex::new(promise) }))
    }

    /// The replica.
    pub fn backend(&self) -> &Arc<Backend> {
        &self.0.backend
    }

    /// The replica, as the exchange that it answers sees it.
    pub fn replica(&self) -> Arc<dyn Replica> {
        self.0.clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (promise, now) = (*self.0.promise(), clock::now());
        let backend = self.backend();
        backend.ledger.give_back(promise, now);
        backend.on_change(now);
    }
}

impl Claim {
    fn promise(&self) -> MutexGuard<'_, Promise> {
        self.promise.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Replica for Claim {
    fn condition(&self, now: Instant) -> Condition {
        self.backend.state.load().condition(now)
    }

    fn recent_times(&self) -> RecentTimes {
        self.backend.state.load().recent_times()
    }

    fn on_gap(&self, gap: Duration) {
        self.backend.gaps.add(gap);
    }

    fn usual_gap(&self) -> Option<f64> {
        self.backend.gap_p99()
    }

    fn on_stall(&self, is_silent: bool) {
        self.backend.on_stall(is_silent);
    }

    fn on_first_output(&self, now: Instant) {
        self.backend.ledger.first_output(&mut self.promise(), now);
        self.backend.show(now);
    }

    fn tokens_per_event(&self) -> f64 {
        self.backend.stream_events.tokens_per_event()
    }

    fn on_answer(&self, observed: &Observed) {
        self.backend.stream_events.on_answer(observed);
        let (usage, is_exact) = (&observed.usage, observed.usage_source == UsageSource::Exact);
        let counts = Counts {
            prompt: usage.input.filter(|_| is_exact),
            cached: usage.cached.filter(|_| is_exact),
            output: usage.output.filter(|_| is_exact),
        };
        self.backend.ledger.answered(&mut self.promise(), &counts);
    }
}

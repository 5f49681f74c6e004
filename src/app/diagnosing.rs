//! Looks at the fleet every few seconds and puts up what is the matter with it.

use crate::backend::pool::Pool;
use crate::backend::{Backend, Health};
use crate::proxy::admission::Admission;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_core::clock;
use tokenweir_core::record::BackendId;
use tokenweir_diagnose::{Board, Counts, Diagnosis, EVERY, Sample, Seen, Tallies, Watch};
use tokio::time::MissedTickBehavior;

/// Who looks, and at what.
#[derive(Clone)]
pub(crate) struct Diagnosing {
    pub(crate) pool: Arc<Pool>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) tallies: Arc<Tallies>,
    pub(crate) board: Arc<Board>,
}

/// A page that is older than this many looks is not what a replica says now.
const STALE: u32 = 3;

impl Diagnosing {
    /// Looks for ever.
    pub(crate) async fn run(self) {
        let mut watch = Watch::default();
        let mut ticks = tokio::time::interval(EVERY);
        // Two looks at once would see the same.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.board.put(self.look(&mut watch, clock::now()));
        }
    }

    fn look(&self, watch: &mut Watch, now: Instant) -> Diagnosis {
        // Logs the end of panic mode, which no request brings.
        self.pool.readiness(now);
        let fleet = self.pool.backends();
        self.tallies.keep(fleet.iter().map(|backend| &backend.id));
        let queued = self.admission.waiting().iter().map(|(_, waiting)| waiting).sum();
        let samples = fleet.iter().map(|backend| {
            let counts = self.tallies.take(&backend.id);
            (backend.id.clone(), sample(backend, counts, queued, now))
        });
        watch.look(samples.collect::<Vec<(BackendId, Sample)>>(), now)
    }
}

/// One moment of a replica.
fn sample(backend: &Backend, counts: Counts, queued: usize, now: Instant) -> Sample {
    let state = backend.state();
    let page = state.sample.filter(|page| {
        let age = now.saturating_duration_since(page.at);
        age <= EVERY * STALE && page.load.is_understood()
    });
    let seen = Seen {
        in_flight: backend.in_flight(),
        stalled: backend.stalled(),
        stalls: backend.stalls(),
        gap_p99: backend.gap_p99(),
        queued,
        counts,
    };
    // One that is sent nothing on purpose is not judged.
    let is_up = state.health == Health::Up && !state.is_asleep() && backend.weight() > 0;
    Sample { at: now, is_up, page: page.map(|page| page.load), seen: Some(seen) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::address::Address;
    use tokenweir_core::routing::Policy;

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_says_nothing_is_looked_at_and_not_judged() {
        let address = Address::parse("http://127.0.0.1:9").unwrap();
        let backend = Backend::new(BackendId::new("gpu-0"), address, None);
        let pool = Arc::new(Pool::new(vec![backend], &[], Policy::default()));
        let board = Arc::new(Board::default());
        let admission = Arc::new(Admission::new(pool.clone(), None));
        let tallies = Arc::<Tallies>::default();
        let looking = Diagnosing { pool, admission, tallies, board: board.clone() };
        let running = tokio::spawn(looking.run());
        tokio::time::sleep(EVERY * 20).await;
        running.abort();
        let latest = board.latest();
        assert!(latest.verdicts.is_empty(), "{latest:?}");
        assert_eq!(latest.backends[0].backend, "gpu-0");
        assert!(!latest.backends[0].is_judged);
        assert_eq!(latest.has("kv_thrashing", "gpu-0"), None);
    }
}

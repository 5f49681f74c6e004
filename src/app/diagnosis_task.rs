//! The background task that samples all backends at a fixed interval and publishes the diagnosis.

use crate::admin::Admin;
use crate::backend::pool::BackendPool;
use crate::backend::{Backend, Health};
use crate::proxy::ProxyState;
use crate::proxy::admission::AdmissionController;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_core::clock;
use tokenweir_core::record::BackendId;
use tokenweir_diagnose::{
    BackendRequestCounters, BackendRequestCounts, Diagnoser, Diagnosis, DiagnosisSample, EVERY,
    GatewayObservations, LatestDiagnosis,
};
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokio::time::MissedTickBehavior;

/// The diagnosis task: the sources of its samples, and the shared value that it publishes.
#[derive(Clone)]
pub(crate) struct DiagnosisTask {
    pool: Arc<BackendPool>,
    admission: Arc<AdmissionController>,
    /// Counters of first outputs and ended requests, for each backend. The diagnosis task reads
    /// and resets them each time it takes a sample.
    request_counters: Arc<BackendRequestCounters>,
    /// The latest diagnosis, which the task replaces at each sample.
    latest_diagnosis: Arc<LatestDiagnosis>,
}

/// Maximum age of a scrape, in sampling intervals. An older scrape counts as missing.
const MAX_SAMPLE_AGE_INTERVALS: u32 = 3;

impl DiagnosisTask {
    /// Creates the task that diagnoses the backends of the pool and publishes the result to
    /// `admin`.
    pub(super) fn new(admin: &Admin, request_counters: Arc<BackendRequestCounters>) -> Self {
        let ProxyState { pool, admission, .. } = admin.proxy.clone();
        Self { pool, admission, request_counters, latest_diagnosis: admin.diagnosis.clone() }
    }

    /// Starts the task.
    pub(super) fn start(self) -> SupervisedTask {
        supervise::spawn(BackgroundTask::Diagnosis, move || self.clone().run())
    }

    /// Samples and diagnoses until the future is dropped.
    async fn run(self) {
        let mut diagnoser = Diagnoser::default();
        let mut ticks = tokio::time::interval(EVERY);
        // Two samples in direct succession would be equal.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.latest_diagnosis.put(self.diagnose(&mut diagnoser, clock::now()));
        }
    }

    fn diagnose(&self, diagnoser: &mut Diagnoser, now: Instant) -> Diagnosis {
        // The readiness is not used. Its computation logs the end of panic mode, which no request
        // logs.
        self.pool.readiness(now);
        let backends = self.pool.backends();
        self.request_counters.retain_backends(backends.iter().map(|backend| &backend.identity.id));
        let queued = self.admission.waiting_by_class().iter().map(|(_, waiting)| waiting).sum();
        let samples = backends.iter().map(|backend| {
            let counts = self.request_counters.take(&backend.identity.id);
            (backend.identity.id.clone(), sample_backend(backend, counts, queued, now))
        });
        diagnoser.diagnose(samples.collect::<Vec<(BackendId, DiagnosisSample)>>(), now)
    }
}

/// A sample of one backend.
fn sample_backend(
    backend: &Backend,
    counts: BackendRequestCounts,
    queued: usize,
    now: Instant,
) -> DiagnosisSample {
    let state = backend.health.state();
    let scrape = state.sample.filter(|scrape| {
        let age = now.saturating_duration_since(scrape.scraped_at);
        age <= EVERY * MAX_SAMPLE_AGE_INTERVALS && scrape.load.is_understood()
    });
    let observed = GatewayObservations {
        in_flight: backend.load.in_flight(),
        stalled: backend.load.stalled_streams(),
        stalls: backend.load.stall_count(),
        gap_p99: backend.load.gap_p99(),
        queued,
        counts,
    };
    // A backend that is asleep or drained or has weight 0 gets no requests on purpose, so the
    // diagnosis does not judge it.
    let is_up = state.health == Health::Up && !state.is_asleep() && backend.weight() > 0;
    DiagnosisSample {
        at: now,
        is_up,
        page: scrape.map(|scrape| scrape.load),
        gateway: Some(observed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::address::BackendAddress;
    use tokenweir_core::routing::Policy;

    #[tokio::test(start_paused = true)]
    async fn a_backend_without_samples_is_listed_and_not_judged() {
        let address = BackendAddress::parse("http://127.0.0.1:9").unwrap();
        let backend = Backend::new(BackendId::new("gpu-0"), address, None);
        let pool = Arc::new(BackendPool::new(vec![backend], &[], Policy::default()));
        let latest_diagnosis = Arc::new(LatestDiagnosis::default());
        let admission = Arc::new(AdmissionController::new(pool.clone(), None));
        let request_counters = Arc::<BackendRequestCounters>::default();
        let diagnosis = DiagnosisTask {
            pool,
            admission,
            request_counters,
            latest_diagnosis: latest_diagnosis.clone(),
        };
        let task = tokio::spawn(diagnosis.run());
        tokio::time::sleep(EVERY * 20).await;
        task.abort();
        let latest = latest_diagnosis.latest();
        assert!(latest.verdicts.is_empty(), "{latest:?}");
        assert_eq!(latest.backends[0].backend, "gpu-0");
        assert!(!latest.backends[0].is_determined);
        assert_eq!(latest.has("kv_thrashing", "gpu-0"), None);
    }
}

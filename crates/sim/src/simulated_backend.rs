//! A simulated vLLM server without its socket: an engine, the loop that drives it, and its
//! statistics.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::Notify;

use super::engine::{
    Engine, EngineSpec, EngineStep, SequenceId, SequenceRequest, SequenceTooLong,
    SimulatedEngineLoad,
};
use super::generation_progress::GenerationProgress;
use super::settings::SimulatorSettings;
use super::telemetry::{
    EngineTelemetry, MetricsSource, RequestSpan, RequestSpanExporter, render_metrics_page,
};
use super::text::SimulatedFinishReason;
use tokenweir_core::clock;

/// Maximum delay of the simulated time that the loop catches up. Larger delays are accepted. Timers
/// that round up to a millisecond must not slow the engine down, but a busy machine can.
const MAX_CATCH_UP: Duration = Duration::from_millis(10);

/// A simulated vLLM server without its socket.
#[derive(Debug)]
pub struct SimulatedBackend {
    settings: SimulatorSettings,
    spec: EngineSpec,
    core: Mutex<SimulatedBackendState>,
    /// Notified when the engine has work.
    work: Notify,
    /// Notified when a condition of [`SimulatedBackend::until`] can have changed.
    changed: Notify,
    bytes: AtomicU64,
    spans: Option<Arc<RequestSpanExporter>>,
    started_at: Instant,
    created: u64,
}

#[derive(Debug)]
struct SimulatedBackendState {
    engine: Engine,
    telemetry: EngineTelemetry,
    /// The engine load at the end of the last step. Reported gauges do not change during a step.
    load: SimulatedEngineLoad,
    subscribers: HashMap<SequenceId, SequenceSubscriber>,
    next_sequence_id: u64,
    random: fastrand::Rng,
    requests: u64,
    aborts: u64,
    finished: u64,
}

/// The receiver of the tokens of a sequence.
#[derive(Debug)]
struct SequenceSubscriber {
    counters: Arc<GenerationProgress>,
    choice: usize,
    finish: SimulatedFinishReason,
    /// The span data. Only the first sequence of a request has it, so a request has one span.
    call: Option<RequestSpan>,
}

/// Cumulative and current statistics of a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct SimulatedBackendStats {
    /// Number of generating requests that the engine accepted.
    pub requests: u64,
    /// Number of requests whose client disconnected during generation.
    pub aborts: u64,
    /// Number of finished requests.
    pub finished: u64,
    /// Number of sequences in the batch.
    pub running: usize,
    /// Number of sequences in the queue.
    pub waiting: usize,
    /// Share of pinned KV blocks, 0 to 1.
    pub kv_usage: f64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Tokens found in the prefix cache.
    pub prefix_hits: u64,
    /// Number of generated tokens.
    pub generation_tokens: u64,
    /// Response bytes handed to connections.
    pub bytes: u64,
}

impl SimulatedBackend {
    pub(super) fn new(
        settings: &SimulatorSettings,
        number: u16,
        spans: Option<Arc<RequestSpanExporter>>,
    ) -> Arc<Self> {
        let spec = settings.spec();
        let created = clock::wall_time().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Arc::new(Self {
            core: Mutex::new(SimulatedBackendState {
                engine: Engine::new(spec),
                telemetry: EngineTelemetry::default(),
                load: SimulatedEngineLoad::default(),
                subscribers: HashMap::new(),
                next_sequence_id: 0,
                random: fastrand::Rng::with_seed(settings.seed.wrapping_add(u64::from(number))),
                requests: 0,
                aborts: 0,
                finished: 0,
            }),
            settings: settings.clone(),
            spec,
            work: Notify::new(),
            changed: Notify::new(),
            bytes: AtomicU64::new(0),
            spans,
            started_at: clock::now(),
            created,
        })
    }

    /// Returns the statistics.
    pub fn stats(&self) -> SimulatedBackendStats {
        let core = self.core();
        let load = core.engine.load();
        SimulatedBackendStats {
            requests: core.requests,
            aborts: core.aborts,
            finished: core.finished,
            running: load.running,
            waiting: load.waiting,
            kv_usage: load.kv_usage,
            preemptions: load.preemptions,
            prefix_queries: load.prefix_queries,
            prefix_hits: load.prefix_hits,
            generation_tokens: load.generation_tokens,
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    /// Waits until the statistics satisfy `condition`, which is checked after every step and every
    /// request.
    pub async fn until(
        &self,
        condition: impl Fn(&SimulatedBackendStats) -> bool,
    ) -> SimulatedBackendStats {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let stats = self.stats();
            if condition(&stats) {
                return stats;
            }
            changed.await;
        }
    }

    /// Renders the `/metrics` page.
    pub fn metrics(&self) -> String {
        let core = self.core();
        let scene = MetricsSource {
            model: self.settings.model(),
            spec: &self.spec,
            load: &core.load,
            telemetry: &core.telemetry,
        };
        render_metrics_page(&scene, self.settings.metrics_dialect)
    }

    pub(super) fn settings(&self) -> &SimulatorSettings {
        &self.settings
    }

    /// Start time of the backend in Unix seconds.
    pub(super) fn created(&self) -> u64 {
        self.created
    }

    pub(super) fn random_id(&self) -> String {
        format!("{:016x}", self.core().random.u64(..))
    }

    pub(super) fn count_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds the sequences of one request to the queue. If one does not fit, all are aborted.
    pub(super) fn submit(
        &self,
        requests: impl IntoIterator<Item = (SequenceRequest, SimulatedFinishReason)>,
        mut call: Option<RequestSpan>,
    ) -> Result<(Vec<SequenceId>, Arc<GenerationProgress>), SequenceTooLong> {
        let now = self.now();
        let requests: Vec<_> = requests.into_iter().collect();
        let counters = GenerationProgress::new(requests.len());
        let mut ids = Vec::with_capacity(requests.len());
        let mut core = self.core();
        core.requests += 1;
        for (choice, (request, finish)) in requests.into_iter().enumerate() {
            let id = SequenceId(core.next_sequence_id);
            core.next_sequence_id += 1;
            if let Err(error) = core.engine.submit(id, request, now) {
                drop(core);
                self.end(&ids);
                return Err(error);
            }
            ids.push(id);
            let counters = Arc::clone(&counters);
            core.subscribers
                .insert(id, SequenceSubscriber { counters, choice, finish, call: call.take() });
        }
        drop(core);
        self.work.notify_one();
        self.changed.notify_waiters();
        Ok((ids, counters))
    }

    /// Releases the sequences of a request. Sequences that still generate are aborted.
    pub(super) fn end(&self, ids: &[SequenceId]) {
        let mut core = self.core();
        let mut aborted = false;
        for &id in ids {
            aborted |= core.engine.abort(id);
            core.subscribers.remove(&id);
        }
        if aborted {
            core.aborts += 1;
            core.load = core.engine.load();
        } else {
            core.finished += 1;
        }
        drop(core);
        self.changed.notify_waiters();
    }

    /// Drives the engine without end. Each step begins when the previous step ends.
    pub(super) async fn run(&self) {
        let mut time = self.now();
        loop {
            let latest =
                self.now().saturating_sub(MAX_CATCH_UP.mul_f64(self.settings.time_scale.get()));
            time = time.max(latest);
            let Some(step) = self.compute_next_step(time) else {
                self.work.notified().await;
                time = self.now();
                continue;
            };
            time += step.duration;
            self.sleep_until_simulated(time).await;
            self.publish_step(&step);
        }
    }

    async fn sleep_until_simulated(&self, time: Duration) {
        match time.saturating_sub(self.now()) {
            // A timer takes at least a millisecond, even for a duration of zero.
            Duration::ZERO => tokio::task::yield_now().await,
            ahead => tokio::time::sleep(ahead.div_f64(self.settings.time_scale.get())).await,
        }
    }

    fn compute_next_step(&self, time: Duration) -> Option<EngineStep> {
        self.core().engine.step(time)
    }

    fn publish_step(&self, step: &EngineStep) {
        let mut guard = self.core();
        let core = &mut *guard;
        for token in &step.tokens {
            if let Some(subscriber) = core.subscribers.get(&token.id) {
                subscriber.counters.advance(subscriber.choice, token.nth, token.cached_tokens);
            }
        }
        core.telemetry.step(step);
        for finished in &step.finished {
            if let Some(subscriber) = core.subscribers.remove(&finished.id) {
                core.telemetry.finished(finished, subscriber.finish);
                if let (Some(spans), Some(call)) = (&self.spans, &subscriber.call) {
                    let ids = (core.random.u128(1..), core.random.u64(1..));
                    spans.finished(call, finished, self.settings.time_scale.get(), ids);
                }
            }
        }
        core.load = core.engine.load();
        drop(guard);
        self.changed.notify_waiters();
    }

    /// Simulated time since the start.
    fn now(&self) -> Duration {
        clock::now().duration_since(self.started_at).mul_f64(self.settings.time_scale.get())
    }

    fn core(&self) -> MutexGuard<'_, SimulatedBackendState> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! A simulated vLLM server without its socket: an engine, the loop that drives it, and its
//! statistics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, UNIX_EPOCH};

use tokio::sync::Notify;

use super::engine::{
    Engine, EngineSpec, EngineStep, SequenceId, SequenceRequest, SequenceTooLong,
    SimulatedEngineLoad,
};
use super::generation_progress::GenerationProgress;
use super::settings::SimulatorSettings;
use super::telemetry::{
    EngineTelemetry, KvEventPorts, KvEventPublisher, MetricsSource, RequestSpan,
    RequestSpanExporter, SequenceOrigin, render_metrics_page,
};
use super::text::SimulatedFinishReason;
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;

/// Maximum delay against the real clock that the engine loop makes up for, by computing the next step as if it
/// had begun on time. Timers round up to a millisecond, which is less than this limit, so they do not slow the
/// engine down. Greater delays come from a busy machine, and slow the engine down.
const MAX_CATCH_UP: Duration = Duration::from_millis(10);

/// A simulated vLLM server without its socket.
#[derive(Debug)]
pub struct SimulatedBackend {
    pub(super) settings: SimulatorSettings,
    spec: EngineSpec,
    state: Mutex<SimulatedBackendState>,
    /// Notified when the engine has work.
    has_work: Notify,
    /// Notified when a condition of [`SimulatedBackend::until`] may have become true.
    changed: Notify,
    /// The exporter of spans. `None`: no spans are exported.
    spans: Option<Arc<RequestSpanExporter>>,
    /// The publisher of KV events. `None`: no KV events are published.
    pub(super) kv_events: Option<KvEventPublisher>,
    started_at: Instant,
    /// Start time of the backend in Unix seconds.
    pub(super) created: u64,
}

/// The part of a backend that the engine loop and the connections change.
#[derive(Debug)]
struct SimulatedBackendState {
    engine: Engine,
    telemetry: EngineTelemetry,
    /// The statistics, with the engine load after the last step or abort. The metrics page shows this load, so
    /// its gauges do not change during a step.
    stats: SimulatedBackendStats,
    subscribers: HashMap<SequenceId, SequenceSubscriber>,
    next_sequence_id: u64,
    random: fastrand::Rng,
}

/// A sequence of a request in the form in which it is submitted to the engine.
#[derive(Debug)]
pub(super) struct SubmittedSequence {
    pub(super) request: SequenceRequest,
    pub(super) finish: SimulatedFinishReason,
    pub(super) origin: SequenceOrigin,
}

/// The receiver of the tokens of one sequence, which is one choice of a request.
#[derive(Debug)]
struct SequenceSubscriber {
    progress: Arc<GenerationProgress>,
    choice: usize,
    finish: SimulatedFinishReason,
    origin: SequenceOrigin,
    /// The span data. Only the first sequence of a request has them, so that a request has one span.
    span: Option<RequestSpan>,
}

/// Cumulative and current statistics of a backend.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SimulatedBackendStats {
    /// Number of generating requests that the engine accepted.
    pub requests: u64,
    /// Number of requests that were aborted because their client disconnected during generation.
    pub aborts: u64,
    /// Number of finished requests.
    pub finished: u64,
    /// Gauges and counters of the engine at this time.
    pub load: SimulatedEngineLoad,
}

impl SimulatedBackend {
    pub(super) fn new(
        settings: &SimulatorSettings,
        number: u16,
        spans: Option<Arc<RequestSpanExporter>>,
        kv_events: Option<KvEventPublisher>,
    ) -> Arc<Self> {
        let settings = settings.of_backend(number);
        let spec = settings.spec();
        let mut engine = Engine::new(spec);
        if kv_events.is_some() {
            engine.record_cache_changes();
        }
        let created = clock::wall_time()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        Arc::new(Self {
            state: Mutex::new(SimulatedBackendState {
                engine,
                telemetry: EngineTelemetry::default(),
                stats: SimulatedBackendStats::default(),
                subscribers: HashMap::new(),
                next_sequence_id: 0,
                random: fastrand::Rng::with_seed(settings.seed.wrapping_add(u64::from(number))),
            }),
            settings,
            spec,
            has_work: Notify::new(),
            changed: Notify::new(),
            spans,
            kv_events,
            started_at: clock::now(),
            created,
        })
    }

    /// Returns a copy of the statistics.
    pub fn stats(&self) -> SimulatedBackendStats {
        let state = self.lock_state();
        SimulatedBackendStats {
            load: state.engine.load(),
            ..state.stats
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
        let state = self.lock_state();
        let source = MetricsSource {
            model: self.settings.model(),
            spec: &self.spec,
            load: &state.stats.load,
            telemetry: &state.telemetry,
        };
        render_metrics_page(&source)
    }

    /// If the backend hangs now (`hang_after`), waits forever.
    pub(super) async fn wait_if_hanging(&self) {
        let elapsed = clock::now().duration_since(self.started_at);
        if self
            .settings
            .faults
            .hang_after
            .is_some_and(|time| elapsed >= *time)
        {
            std::future::pending::<()>().await;
        }
    }

    /// The ports at which KV events are published and replayed. `None`: no KV events are published.
    pub fn kv_event_ports(&self) -> Option<KvEventPorts> {
        self.kv_events.as_ref().map(KvEventPublisher::ports)
    }

    /// Clears the prefix cache. Does nothing and returns false while a sequence has blocks. As in vLLM, the KV
    /// event about the clearing is published with the next step.
    pub(super) fn reset_prefix_cache(&self) -> bool {
        self.lock_state().engine.reset_prefix_cache()
    }

    pub(super) fn random_id(&self) -> String {
        format!("{:016x}", self.lock_state().random.u64(..))
    }

    /// Adds the sequences of one request to the queue of the engine. Returns their ids and their progress. If a
    /// sequence is longer than the KV cache, aborts all sequences of the request and fails.
    pub(super) fn submit(
        &self,
        requests: impl IntoIterator<Item = SubmittedSequence>,
        mut span: Option<RequestSpan>,
    ) -> Result<(Vec<SequenceId>, Arc<GenerationProgress>), SequenceTooLong> {
        let now = self.now();
        let requests: Vec<_> = requests.into_iter().collect();
        let progress = GenerationProgress::new(requests.len());
        let mut ids = Vec::with_capacity(requests.len());
        let mut guard = self.lock_state();
        let state = &mut *guard;
        for (
            choice,
            SubmittedSequence {
                request,
                finish,
                origin,
            },
        ) in requests.into_iter().enumerate()
        {
            let id = SequenceId(state.next_sequence_id);
            state.next_sequence_id += 1;
            if let Err(error) = state.engine.submit(id, request, now) {
                // The request was not accepted, so it counts neither as aborted nor as finished.
                for id in ids {
                    state.engine.abort(id);
                    state.subscribers.remove(&id);
                }
                return Err(error);
            }
            ids.push(id);
            let progress = Arc::clone(&progress);
            let span = span.take();
            state.subscribers.insert(
                id,
                SequenceSubscriber {
                    progress,
                    choice,
                    finish,
                    origin,
                    span,
                },
            );
        }
        state.stats.requests += 1;
        drop(guard);
        self.has_work.notify_one();
        self.changed.notify_waiters();
        Ok((ids, progress))
    }

    /// Ends a request. Sequences that are still in the engine are aborted. The request then counts as aborted,
    /// not as finished.
    pub(super) fn end(&self, ids: &[SequenceId]) {
        let mut state = self.lock_state();
        let mut aborted = false;
        for &id in ids {
            aborted |= state.engine.abort(id);
            state.subscribers.remove(&id);
        }
        if aborted {
            state.stats.aborts += 1;
            state.stats.load = state.engine.load();
        } else {
            state.stats.finished += 1;
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Drives the engine forever. Each step begins when the previous step ends.
    pub(super) async fn run(&self) {
        let mut time = self.now();
        loop {
            let latest = self
                .now()
                .saturating_sub(MAX_CATCH_UP.mul_f64(self.settings.time_scale.get()));
            time = time.max(latest);
            let Some(step) = self.compute_next_step(time) else {
                self.has_work.notified().await;
                time = self.now();
                continue;
            };
            time += step.duration;
            self.sleep_until_simulated(time).await;
            self.wait_if_hanging().await;
            self.publish_step(&step);
        }
    }

    /// Waits until the simulated clock shows `time`.
    async fn sleep_until_simulated(&self, time: Duration) {
        match time.saturating_sub(self.now()) {
            // A timer would take at least a millisecond, even for a duration of zero.
            Duration::ZERO => tokio::task::yield_now().await,
            ahead => tokio::time::sleep(ahead.div_f64(self.settings.time_scale.get())).await,
        }
    }

    fn compute_next_step(&self, time: Duration) -> Option<EngineStep> {
        let mut state = self.lock_state();
        if self.settings.faults.slow_after.is_some() {
            let elapsed = clock::now().duration_since(self.started_at);
            state
                .engine
                .change_speed(&self.settings.spec_after(elapsed));
        }
        state.engine.step(time)
    }

    /// Passes the tokens of a completed step to the requests and records the step.
    fn publish_step(&self, step: &EngineStep) {
        let mut guard = self.lock_state();
        let state = &mut *guard;
        if let Some(kv_events) = &self.kv_events {
            let subscribers = &state.subscribers;
            kv_events.publish(&state.engine.take_cache_changes(), |sequence| {
                subscribers
                    .get(&SequenceId(sequence))
                    .map(|subscriber| &subscriber.origin)
            });
        }
        for token in &step.tokens {
            if let Some(subscriber) = state.subscribers.get(&token.id) {
                subscriber
                    .progress
                    .advance(subscriber.choice, token.nth, token.cached_tokens);
            }
        }
        state.telemetry.record_step(step);
        for finished in &step.finished {
            if let Some(subscriber) = state.subscribers.remove(&finished.id) {
                state.telemetry.record_finished(finished, subscriber.finish);
                if let (Some(spans), Some(span)) = (&self.spans, &subscriber.span) {
                    let ids = (state.random.u128(1..), state.random.u64(1..));
                    spans.export(span, finished, self.settings.time_scale.get(), ids);
                }
            }
        }
        state.stats.load = state.engine.load();
        drop(guard);
        self.changed.notify_waiters();
    }

    /// Simulated time since the start of the backend: real time multiplied by the time scale.
    fn now(&self) -> Duration {
        clock::now()
            .duration_since(self.started_at)
            .mul_f64(self.settings.time_scale.get())
    }

    fn lock_state(&self) -> MutexGuard<'_, SimulatedBackendState> {
        lock(&self.state)
    }
}

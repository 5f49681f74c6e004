//! One replica: an engine, the loop that gives it time, and the numbers it tells about itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::Notify;

use super::Settings;
use super::engine::{Engine, Load, Request, SequenceId, Spec, Step, TooLong};
use super::generation::{Counters, Generation};
use super::page::{self, Scene};
use super::spans::{Call, Spans};
use super::telemetry::Telemetry;
use super::text::Finish;
use tokenweir_core::clock;

/// How far the simulated time may stay behind before the delay is kept instead of caught up. Timers
/// that round up to a millisecond must not slow the engine down, a busy machine may.
const CATCH_UP: Duration = Duration::from_millis(10);

/// A simulated vLLM server without its socket.
#[derive(Debug)]
pub struct Replica {
    settings: Settings,
    spec: Spec,
    core: Mutex<Core>,
    /// The engine has something to do.
    work: Notify,
    /// Something happened that [`Replica::until`] may wait for.
    changed: Notify,
    bytes: AtomicU64,
    spans: Option<Arc<Spans>>,
    started: Instant,
    created: u64,
}

#[derive(Debug)]
struct Core {
    engine: Engine,
    telemetry: Telemetry,
    /// The engine's load when it last changed for the outside: gauges stand still during a step.
    load: Load,
    clients: HashMap<SequenceId, Client>,
    sequences: u64,
    random: fastrand::Rng,
    requests: u64,
    aborts: u64,
    finished: u64,
}

/// Who waits for a sequence.
#[derive(Debug)]
struct Client {
    counters: Arc<Counters>,
    choice: usize,
    finish: Finish,
    /// What its span will tell. A request has one, whatever the number of its sequences.
    call: Option<Call>,
}

/// What happened in a replica so far, and what is going on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Generating requests that the engine accepted.
    pub requests: u64,
    /// Requests whose client left while they were generating.
    pub aborts: u64,
    /// Requests that came to their end.
    pub finished: u64,
    /// Sequences in the batch.
    pub running: usize,
    /// Sequences in the queue.
    pub waiting: usize,
    /// Pinned share of the KV blocks, 0 to 1.
    pub kv_usage: f64,
    /// Sequences preempted.
    pub preemptions: u64,
    /// Tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Tokens found there.
    pub prefix_hits: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Bytes of answers handed to connections.
    pub bytes: u64,
}

impl Replica {
    pub(super) fn new(settings: &Settings, number: u16, spans: Option<Arc<Spans>>) -> Arc<Self> {
        let spec = settings.spec();
        let created = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Arc::new(Self {
            core: Mutex::new(Core {
                engine: Engine::new(spec),
                telemetry: Telemetry::default(),
                load: Load::default(),
                clients: HashMap::new(),
                sequences: 0,
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
            started: clock::now(),
            created,
        })
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        let core = self.core();
        let load = core.engine.load();
        Stats {
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

    /// Waits until the stats satisfy `condition`, which is asked after every step and every request.
    pub async fn until(&self, condition: impl Fn(&Stats) -> bool) -> Stats {
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

    /// The `/metrics` page.
    pub fn metrics(&self) -> String {
        let core = self.core();
        let scene = Scene {
            model: self.settings.model(),
            spec: &self.spec,
            load: &core.load,
            telemetry: &core.telemetry,
        };
        page::render(&scene, self.settings.metrics_dialect)
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// When the replica started, in unix seconds.
    pub(super) fn created(&self) -> u64 {
        self.created
    }

    pub(super) fn random_id(&self) -> String {
        format!("{:016x}", self.core().random.u64(..))
    }

    pub(super) fn count_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Queues the sequences of one request. What was queued is aborted if one does not fit.
    pub(super) fn submit(
        self: &Arc<Self>,
        requests: impl IntoIterator<Item = (Request, Finish)>,
        mut call: Option<Call>,
    ) -> Result<Generation, TooLong> {
        let now = self.now();
        let requests: Vec<_> = requests.into_iter().collect();
        let counters = Counters::new(requests.len());
        let mut ids = Vec::with_capacity(requests.len());
        let mut core = self.core();
        core.requests += 1;
        for (choice, (request, finish)) in requests.into_iter().enumerate() {
            let id = SequenceId(core.sequences);
            core.sequences += 1;
            if let Err(refused) = core.engine.submit(id, request, now) {
                drop(core);
                self.end(&ids);
                return Err(refused);
            }
            ids.push(id);
            let counters = Arc::clone(&counters);
            core.clients.insert(id, Client { counters, choice, finish, call: call.take() });
        }
        drop(core);
        self.work.notify_one();
        self.changed.notify_waiters();
        Ok(Generation::new(Arc::clone(self), ids, counters))
    }

    /// The client of these sequences is gone; those that still generate are aborted.
    pub(super) fn end(&self, ids: &[SequenceId]) {
        let mut core = self.core();
        let mut aborted = false;
        for &id in ids {
            aborted |= core.engine.abort(id);
            core.clients.remove(&id);
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

    /// Gives the engine time, for ever. A step begins when the one before it ends.
    pub(super) async fn run(&self) {
        let mut time = self.now();
        loop {
            let latest =
                self.now().saturating_sub(CATCH_UP.mul_f64(self.settings.time_scale.get()));
            time = time.max(latest);
            let Some(step) = self.next_step(time) else {
                self.work.notified().await;
                time = self.now();
                continue;
            };
            time += step.duration;
            self.wait_until(time).await;
            self.deliver(&step);
        }
    }

    async fn wait_until(&self, time: Duration) {
        match time.saturating_sub(self.now()) {
            // A timer would take a millisecond even for nothing.
            Duration::ZERO => tokio::task::yield_now().await,
            ahead => tokio::time::sleep(ahead.div_f64(self.settings.time_scale.get())).await,
        }
    }

    fn next_step(&self, time: Duration) -> Option<Step> {
        self.core().engine.step(time)
    }

    fn deliver(&self, step: &Step) {
        let mut guard = self.core();
        let core = &mut *guard;
        for token in &step.tokens {
            if let Some(client) = core.clients.get(&token.id) {
                client.counters.advance(client.choice, token.nth, token.cached_tokens);
            }
        }
        core.telemetry.step(step);
        for finished in &step.finished {
            if let Some(client) = core.clients.remove(&finished.id) {
                core.telemetry.finished(finished, client.finish);
                if let (Some(spans), Some(call)) = (&self.spans, &client.call) {
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
        clock::now().duration_since(self.started).mul_f64(self.settings.time_scale.get())
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

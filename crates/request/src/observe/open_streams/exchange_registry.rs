//! The exchanges and response streams that are open.
//!
//! Each stream stores the time of its last output, and whether it waits for its backend, in atomics
//! ([`StreamActivity`]). A periodic sweep over all streams detects stalls while they last. This costs a stream
//! one atomic store per frame.

use super::backend_monitor::BackendMonitor;
use super::open_requests::OpenRequests;
use super::open_table::{OpenTable, TableEntry};
use super::stream_activity::StreamActivity;
use super::stream_policy::{StreamPolicy, StreamRules};
use super::stream_snapshot::{OpenStream, OpenStreamsSnapshot, StreamInfo, StreamPhase};
use crate::record::{ClientIdentity, ResponseBuckets, SlowLimits};
use arc_swap::ArcSwap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::{AtomicCount, AtomicFlag};
use tokenweir_protocol::openai::PhraseMatcher;
use tokenweir_protocol::{settings, units};

/// Multiple of the p99 of the backend's recent output gaps above which a silence is a stall.
const P99_MULTIPLIER: f64 = 10.0;

settings! {
    /// When a silence between two outputs is a stall, and how long it may last.
    #[derive(Copy)]
    pub struct StallLimits {
        /// Shortest silence that counts as a stall. Ten times the p99 of the backend's recent output
        /// gaps replaces it if that is longer.
        #[serde(with = "units::Duration")]
        pub min_gap: Duration,
        /// Silence after which the gateway aborts a stream. `null`: never.
        #[serde(with = "units::OptionalDuration")]
        pub abort_after: Option<Duration>,
    }
}

/// The settings of exchanges, which a reload replaces.
#[derive(Debug, Clone, Default)]
pub struct ObservationSettings {
    /// The limits above which an open stream is stalled.
    pub stalls: StallLimits,
    /// Keep-alive comments, and the handling of streams that end early.
    pub streams: StreamRules,
    /// The limits above which a finished request was slow.
    pub slow: SlowLimits,
    /// Phrases that mark a response as a model refusal.
    pub phrases: Option<Arc<PhraseMatcher>>,
    /// Bucket bounds of latency and token histograms.
    pub scales: ResponseBuckets,
}

/// All open exchanges, and the open streams among them.
pub struct ExchangeRegistry {
    settings: ArcSwap<ObservationSettings>,
    started_at: Instant,
    open: AtomicCount,
    open_requests: OpenRequests,
    /// Whether the gateway is shutting down and aborts the exchanges that are still open.
    is_shutting_down: AtomicFlag,
    /// Whether the gateway is shutting down and closes each WebSocket.
    is_closing_tunnels: AtomicFlag,
    streams: Arc<OpenTable<StreamActivity>>,
}

/// The entry of a stream among the open streams. Dropping the entry ends the stream.
pub struct StreamEntry(TableEntry<StreamActivity>);

/// Counts an exchange as open until the guard is dropped.
pub struct InFlightGuard {
    registry: Arc<ExchangeRegistry>,
    pub(in crate::observe) settings: Arc<ObservationSettings>,
    slot: usize,
}

impl Default for StallLimits {
    /// The default: a gap of less than one second is no stall, and no stream is aborted.
    fn default() -> Self {
        Self {
            min_gap: Duration::from_secs(1),
            abort_after: None,
        }
    }
}

impl StallLimits {
    fn threshold(&self, backend: &dyn BackendMonitor) -> Duration {
        let seconds = backend.usual_gap().map(|gap| gap * P99_MULTIPLIER);
        let from_gaps = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        from_gaps.unwrap_or_default().max(self.min_gap)
    }
}

impl ExchangeRegistry {
    /// The empty registry of a gateway that starts at `started_at`.
    pub fn new(settings: ObservationSettings, started_at: Instant) -> Arc<Self> {
        Arc::new(Self {
            settings: ArcSwap::from_pointee(settings),
            started_at,
            open: AtomicCount::default(),
            open_requests: OpenRequests::default(),
            is_shutting_down: AtomicFlag::default(),
            is_closing_tunnels: AtomicFlag::default(),
            streams: Arc::default(),
        })
    }

    /// Replaces the settings. The new stall limits apply to all exchanges immediately. For all other settings,
    /// open exchanges keep the values of their start.
    pub fn change(&self, settings: ObservationSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// Number of exchanges that have not ended.
    pub fn open(&self) -> usize {
        self.open.get()
    }

    /// The start of the oldest open exchange. `None`: no exchange is open.
    pub fn oldest(&self) -> Option<Instant> {
        self.open_requests.oldest()
    }

    /// Registers an exchange whose request head was read at `accepted`.
    pub fn enter(self: &Arc<Self>, accepted: Instant) -> InFlightGuard {
        self.open.add(1);
        let slot = self.open_requests.add(accepted);
        InFlightGuard {
            registry: self.clone(),
            settings: self.settings.load_full(),
            slot,
        }
    }

    /// From now on, a dropped exchange counts as aborted by the gateway and not by its client.
    pub fn begin_shutdown(&self) {
        self.is_shutting_down.set(true);
    }

    /// From now on, each sweep closes every WebSocket. Called at shutdown, because a WebSocket may never end by
    /// itself.
    pub fn close_tunnels(&self) {
        self.is_closing_tunnels.set(true);
    }

    /// Checks every stream once. Reports new stalls to the backends and requests keep-alive comments. Aborts a
    /// stream if its silence, its wait for the first output, its wait for the end or its total time is too
    /// long, or if its key was removed. A silent stream of a backend that is down moves or ends.
    pub fn sweep(&self, now: Instant) {
        let limits = self.settings.load().stalls;
        for (_, activity) in self.streams.values() {
            activity.check_keep_alive(now);
            if activity.is_next_step_overdue(now)
                || activity.is_overdue(now)
                || activity.is_revoked(now)
            {
                activity.cut();
            }
            if activity.is_tunnel() {
                let idle = activity
                    .terms
                    .idle
                    .is_some_and(|idle| activity.is_tunnel_idle(idle, now));
                if idle || self.is_closing_tunnels.get() {
                    activity.cut();
                }
                continue;
            }
            activity.check_move(now);
            activity.check_loss(now);
            let Some(silent_for) = activity.backend_silence(now) else {
                continue;
            };
            if silent_for >= limits.threshold(&*activity.backend) {
                activity.stall(now);
            }
            let abort_after = activity.terms.idle.or(limits.abort_after);
            if abort_after.is_some_and(|limit| silent_for >= limit) {
                activity.cut();
            }
        }
    }

    /// Marks the streams whose client no longer has a valid key. The next sweep closes a marked WebSocket. A
    /// marked event stream has some time to end before a later sweep closes it.
    pub fn mark_revoked(&self, is_valid: impl Fn(&Arc<ClientIdentity>) -> bool, now: Instant) {
        for (_, activity) in self.streams.values() {
            let has_key = activity.subject.caller.as_ref().is_none_or(&is_valid);
            activity.set_revoked((!has_key).then_some(now));
        }
    }

    /// Moves the streams of a backend to other backends. Returns the number of streams that can be moved.
    pub fn move_streams(&self, backend: &str) -> usize {
        let streams = self.streams.values();
        let of_backend = streams.iter().filter(|(_, activity)| {
            activity
                .subject
                .backend
                .as_ref()
                .is_some_and(|id| id.as_str() == backend)
        });
        of_backend
            .filter(|(_, activity)| activity.request_move())
            .count()
    }

    /// The state of the streams at `now`: totals over all streams, and the `max_oldest` oldest streams.
    pub fn snapshot(&self, max_oldest: usize, now: Instant) -> OpenStreamsSnapshot {
        let activities = self.streams.values();
        let slow = self.settings.load().slow;
        let mut snapshot = OpenStreamsSnapshot {
            count: activities.len(),
            ..OpenStreamsSnapshot::default()
        };
        for (sequence_number, activity) in activities {
            let (phase, silent_for) = activity.phase(now);
            let tokens = activity.tokens();
            snapshot.tokens += tokens;
            *snapshot.phases.entry(phase).or_default() += 1;
            let age = now.saturating_duration_since(activity.subject.accepted);
            let is_late = |waits, limit| usize::from(waits && age > limit);
            snapshot.late_outputs += is_late(phase == StreamPhase::NoOutput, slow.ttft);
            snapshot.late_answers += is_late(activity.is_reasoning(), slow.first_answer);
            if snapshot.oldest.len() < max_oldest {
                let subject = activity.subject.clone();
                snapshot.oldest.push(OpenStream {
                    number: sequence_number,
                    subject,
                    phase,
                    tokens,
                    since_last_output: silent_for,
                });
            }
        }
        snapshot
    }

    /// Calls `visit` with the identity of each open stream.
    pub fn visit_streams(&self, mut visit: impl FnMut(&StreamInfo)) {
        self.streams
            .values()
            .iter()
            .for_each(|(_, activity)| visit(&activity.subject));
    }

    /// Start of the gateway, from which sequence numbers and ages count.
    pub fn started_at(&self) -> Instant {
        self.started_at
    }
}

impl InFlightGuard {
    /// Registers the response stream of `backend`. `tunnel`: the number of bytes that the client has sent,
    /// if the stream is a WebSocket.
    pub fn stream(
        &self,
        backend: Arc<dyn BackendMonitor>,
        subject: StreamInfo,
        terms: StreamPolicy,
        tunnel: Option<Arc<AtomicCount>>,
        now: Instant,
    ) -> StreamEntry {
        let activity = StreamActivity::new(backend, subject, terms, tunnel, now);
        StreamEntry(self.registry.streams.insert(activity))
    }

    /// Whether the gateway closes the stream because it is shutting down and the stream is a WebSocket.
    pub fn is_closing(&self, activity: &StreamActivity) -> bool {
        activity.is_tunnel() && self.registry.is_closing_tunnels.get()
    }

    /// Whether the gateway is aborting open exchanges.
    pub fn is_cutting(&self) -> bool {
        self.registry.is_shutting_down.get()
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.registry.open_requests.remove(self.slot);
        self.registry.open.sub(1);
    }
}

impl Deref for StreamEntry {
    type Target = StreamActivity;

    fn deref(&self) -> &StreamActivity {
        &self.0.value
    }
}

impl Drop for StreamEntry {
    fn drop(&mut self) {
        self.close();
    }
}

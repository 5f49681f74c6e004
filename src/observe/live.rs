//! The exchanges that are open now. Each stream leaves a pulse here: when its last output came and
//! whom it waits for. One sweep over all of them, now and then, sees a stream that has fallen
//! silent while it is silent; a stream pays one store for each of its frames.

use crate::openai::Phrases;
use crate::record::{Condition, Observed, RecentTimes, Scales, SlowLimits, Stall};
use crate::units;
use futures_util::task::AtomicWaker;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// What an exchange and its observers ask of the replica that answers it.
pub trait Replica: Send + Sync + 'static {
    /// What it last said of itself.
    fn condition(&self, now: Instant) -> Condition;
    /// Mean times of the requests that it finished lately.
    fn recent_times(&self) -> RecentTimes;
    /// An output came this long after the one before it.
    fn on_gap(&self, gap: Duration);
    /// The p99 of its gaps lately, in seconds. `None`: too few.
    fn usual_gap(&self) -> Option<f64>;
    /// One of its streams has fallen silent, or goes on again.
    fn on_stall(&self, is_silent: bool);
    /// The first output of this answer came: its prompt has been computed.
    fn on_first_output(&self, _now: Instant) {}
    /// This is what was seen of the answer, now that it is over.
    fn on_answer(&self, _observed: &Observed) {}
}

/// When a silence between two outputs is a stall, and how long one may last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StallLimits {
    /// How many times the p99 of the replica's gaps lately.
    pub factor: f64,
    /// No shorter silence is a stall.
    #[serde(with = "units::duration")]
    pub floor: Duration,
    /// A stream that is silent for longer is cut. `None`: never.
    #[serde(with = "units::optional_duration")]
    pub abort_after: Option<Duration>,
}

/// What is looked for.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// When a stream that is open is too slow.
    pub stalls: StallLimits,
    /// When a request that has ended was too slow.
    pub slow: SlowLimits,
    /// Phrases that make an answer a refusal.
    pub phrases: Option<Arc<Phrases>>,
    /// The bounds under which times and tokens are counted.
    pub scales: Scales,
}

/// All open exchanges.
#[derive(Debug)]
pub struct Live {
    settings: Settings,
    epoch: Instant,
    open: AtomicUsize,
    /// The gateway ends them now.
    is_cutting: AtomicBool,
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    next: u64,
    open: BTreeMap<u64, Arc<Pulse>>,
}

/// The state of one stream that others may look at.
pub struct Pulse {
    replica: Arc<dyn Replica>,
    epoch: Instant,
    /// Nanoseconds from the epoch to the last output; 0 before the first and after the end.
    last_output: AtomicU64,
    /// The replica owes the next byte, not the client the taking of the last.
    waits_for_replica: AtomicBool,
    is_stalled: AtomicBool,
    stall: Mutex<Option<Stall>>,
    is_cut: AtomicBool,
    waker: AtomicWaker,
}

/// A stream's place among the open ones, until it is dropped.
#[derive(Debug)]
pub struct Place {
    live: Arc<Live>,
    key: u64,
    pulse: Arc<Pulse>,
}

/// Counts an exchange as open until it is dropped.
#[derive(Debug)]
pub struct Presence(Arc<Live>);

impl Default for StallLimits {
    /// Ten times the p99 of the gaps, but at least a second. Nothing is cut.
    fn default() -> Self {
        Self { factor: 10.0, floor: Duration::from_secs(1), abort_after: None }
    }
}

// === impl Live ===

impl Live {
    /// Nothing is open. Times are kept from `epoch` on.
    pub fn new(settings: Settings, epoch: Instant) -> Arc<Self> {
        Arc::new(Self {
            settings,
            epoch,
            open: AtomicUsize::new(0),
            is_cutting: AtomicBool::new(false),
            streams: Mutex::default(),
        })
    }

    /// How many exchanges are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Counts one more.
    pub fn enter(self: &Arc<Self>) -> Presence {
        self.open.fetch_add(1, Ordering::Relaxed);
        Presence(self.clone())
    }

    /// What is dropped from now on is cut by the gateway, not left by its client.
    pub fn cut_all(&self) {
        self.is_cutting.store(true, Ordering::Relaxed);
    }

    /// Whether the gateway ends what is open.
    pub fn is_cutting(&self) -> bool {
        self.is_cutting.load(Ordering::Relaxed)
    }

    /// Looks at every stream once: what has fallen silent is told to its replica and its own
    /// record, and cut if it lasts too long.
    pub fn sweep(&self, now: Instant) {
        let pulses: Vec<Arc<Pulse>> = self.streams().open.values().cloned().collect();
        for pulse in pulses {
            let Some(silence) = pulse.silence(now) else { continue };
            if silence >= self.threshold(&*pulse.replica) {
                pulse.stall(now);
            }
            if self.settings.stalls.abort_after.is_some_and(|limit| silence >= limit) {
                pulse.is_cut.store(true, Ordering::Relaxed);
                pulse.waker.wake();
            }
        }
    }

    fn threshold(&self, replica: &dyn Replica) -> Duration {
        let usual = replica.usual_gap().map(|gap| gap * self.settings.stalls.factor);
        let adaptive = usual.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        adaptive.unwrap_or_default().max(self.settings.stalls.floor)
    }

    fn join(self: &Arc<Self>, replica: Arc<dyn Replica>) -> Place {
        let pulse = Arc::new(Pulse::new(replica, self.epoch));
        let mut streams = self.streams();
        let key = streams.next;
        streams.next += 1;
        streams.open.insert(key, pulse.clone());
        Place { live: self.clone(), key, pulse }
    }

    fn streams(&self) -> std::sync::MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Presence ===

impl Presence {
    /// A place for the stream that `replica` answers with.
    pub fn stream(&self, replica: Arc<dyn Replica>) -> Place {
        self.0.join(replica)
    }

    /// Whether the gateway ends what is open.
    pub fn is_cutting(&self) -> bool {
        self.0.is_cutting()
    }

    /// What is looked for.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Pulse ===

impl Pulse {
    fn new(replica: Arc<dyn Replica>, epoch: Instant) -> Self {
        Self {
            replica,
            epoch,
            last_output: AtomicU64::new(0),
            waits_for_replica: AtomicBool::new(true),
            is_stalled: AtomicBool::new(false),
            stall: Mutex::default(),
            is_cut: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        }
    }

    /// Output came. Gives the stall that it ends.
    pub fn on_output(&self, now: Instant, gap: Option<Duration>) -> Option<Stall> {
        let since_epoch = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        self.last_output.store(since_epoch.max(1), Ordering::Relaxed);
        if let Some(gap) = gap {
            self.replica.on_gap(gap);
        }
        self.resume(now)
    }

    /// Nothing more will come, or has to. Gives the stall that it ends.
    pub fn on_end(&self, now: Instant) -> Option<Stall> {
        self.last_output.store(0, Ordering::Relaxed);
        self.resume(now)
    }

    /// The replica owes the next byte, or the client has not taken the last.
    pub fn wait_for_replica(&self, is_waiting: bool) {
        self.waits_for_replica.store(is_waiting, Ordering::Relaxed);
    }

    /// Whether the stream is to be cut. `waker` is woken when that changes.
    pub fn is_cut(&self, waker: &Waker) -> bool {
        self.waker.register(waker);
        self.is_cut.load(Ordering::Relaxed)
    }

    /// How long the replica has been silent between two outputs.
    fn silence(&self, now: Instant) -> Option<Duration> {
        let last = self.last_output.load(Ordering::Relaxed);
        let is_due = last > 0 && self.waits_for_replica.load(Ordering::Relaxed);
        is_due.then(|| now.saturating_duration_since(self.epoch + Duration::from_nanos(last)))
    }

    fn stall(&self, now: Instant) {
        let mut stall = self.stall.lock().unwrap_or_else(PoisonError::into_inner);
        let last = self.last_output.load(Ordering::Relaxed);
        // It may have ended just now.
        if stall.is_some() || last == 0 {
            return;
        }
        *stall = Some(Stall {
            since: self.epoch + Duration::from_nanos(last),
            seen: now,
            until: None,
            condition: self.replica.condition(now),
        });
        self.is_stalled.store(true, Ordering::Release);
        self.replica.on_stall(true);
    }

    fn resume(&self, now: Instant) -> Option<Stall> {
        if !self.is_stalled.load(Ordering::Acquire) {
            return None;
        }
        self.end_stall(now)
    }

    fn end_stall(&self, now: Instant) -> Option<Stall> {
        let mut stall = self.stall.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_stalled.store(false, Ordering::Release);
        let ended = stall.take()?;
        self.replica.on_stall(false);
        Some(Stall { until: Some(now), ..ended })
    }
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pulse").field("last_output", &self.last_output).finish_non_exhaustive()
    }
}

// === impl Place ===

impl Place {
    /// The stream's pulse.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.live.streams().open.remove(&self.key);
        // A sweep that is under way may have found it silent although it has ended.
        self.pulse.last_output.store(0, Ordering::Relaxed);
        self.pulse.end_stall(self.live.epoch);
    }
}

#[cfg(test)]
mod tests;

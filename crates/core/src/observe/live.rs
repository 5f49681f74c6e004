//! The exchanges that are open now. Each stream leaves a pulse here: when its last output came and
//! whom it waits for. One sweep over all of them, now and then, sees a stream that has fallen
//! silent while it is silent; a stream pays one store for each of its frames.

use super::open::{Glance, OpenStream, Subject};
use super::pulse::Pulse;
use super::terms::{StreamRules, Terms};
use crate::openai::Phrases;
use crate::record::{Condition, Observed, RecentTimes, Scales, SlowLimits};
use crate::units;
use arc_swap::ArcSwap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
    /// Tokens in an event of its streams, as far as they taught it.
    fn tokens_per_event(&self) -> f64 {
        1.0
    }
    /// This is what was seen of the answer, now that it is over.
    fn on_answer(&self, _observed: &Observed) {}
}

/// When a silence between two outputs is a stall, and how long one may last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StallLimits {
    /// How many times the usual longest gap (p99) of the replica's streams lately.
    pub factor: f64,
    /// No shorter silence is a stall.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub floor: Duration,
    /// A stream that is silent for longer is cut. `None`: never.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub abort_after: Option<Duration>,
}

/// What is looked for.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// When a stream that is open is too slow.
    pub stalls: StallLimits,
    /// What is done to streams.
    pub streams: StreamRules,
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
    settings: ArcSwap<Settings>,
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

/// A stream's place among the open ones, until it is dropped.
#[derive(Debug)]
pub struct Place {
    live: Arc<Live>,
    key: u64,
    pulse: Arc<Pulse>,
}

/// Counts an exchange as open until it is dropped. It has the settings of its beginning.
#[derive(Debug)]
pub struct Presence(Arc<Live>, Arc<Settings>);

impl Default for StallLimits {
    /// Ten times the p99 of the gaps, but at least a second. Nothing is cut.
    fn default() -> Self {
        Self { factor: 10.0, floor: Duration::from_secs(1), abort_after: None }
    }
}

// === impl StallLimits ===

impl StallLimits {
    fn threshold(&self, replica: &dyn Replica) -> Duration {
        let usual = replica.usual_gap().map(|gap| gap * self.factor);
        let adaptive = usual.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        adaptive.unwrap_or_default().max(self.floor)
    }
}

// === impl Live ===

impl Live {
    /// Nothing is open. Times are kept from `epoch` on.
    pub fn new(settings: Settings, epoch: Instant) -> Arc<Self> {
        Arc::new(Self {
            settings: ArcSwap::from_pointee(settings),
            epoch,
            open: AtomicUsize::new(0),
            is_cutting: AtomicBool::new(false),
            streams: Mutex::default(),
        })
    }

    /// Looks for other things from now on: in the exchanges that begin, but for stalls, which are
    /// looked for in all.
    pub fn change(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// How many exchanges are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Counts one more.
    pub fn enter(self: &Arc<Self>) -> Presence {
        self.open.fetch_add(1, Ordering::Relaxed);
        Presence(self.clone(), self.settings.load_full())
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
        let limits = self.settings.load().stalls;
        let pulses: Vec<Arc<Pulse>> = self.streams().open.values().cloned().collect();
        for pulse in pulses {
            pulse.keep_alive(now);
            if pulse.is_overdue(now) {
                pulse.cut();
            }
            let Some(silence) = pulse.silence(now) else { continue };
            if silence >= limits.threshold(&*pulse.replica) {
                pulse.stall(now);
            }
            let idle = pulse.terms.idle.or(limits.abort_after);
            if idle.is_some_and(|limit| silence >= limit) {
                pulse.cut();
            }
        }
    }

    /// The streams as they are `now`: all of them counted, and the `most` that have been open
    /// longest.
    pub fn glance(&self, most: usize, now: Instant) -> Glance {
        let copied = |(number, pulse): (&u64, &Arc<Pulse>)| (*number, pulse.clone());
        let pulses: Vec<(u64, Arc<Pulse>)> = self.streams().open.iter().map(copied).collect();
        let mut glance = Glance { count: pulses.len(), ..Glance::default() };
        for (number, pulse) in pulses {
            let (phase, silence) = pulse.phase(now);
            let tokens = pulse.tokens();
            glance.tokens += tokens;
            *glance.phases.entry(phase).or_default() += 1;
            if glance.oldest.len() < most {
                let subject = pulse.subject.clone();
                glance.oldest.push(OpenStream { number, subject, phase, tokens, silence });
            }
        }
        glance
    }

    /// When the gateway began.
    pub fn epoch(&self) -> Instant {
        self.epoch
    }

    fn join(
        self: &Arc<Self>,
        replica: Arc<dyn Replica>,
        subject: Subject,
        terms: Terms,
        now: Instant,
    ) -> Place {
        let pulse = Arc::new(Pulse::new(replica, subject, terms, self.epoch, now));
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
    pub fn stream(
        &self,
        replica: Arc<dyn Replica>,
        subject: Subject,
        terms: Terms,
        now: Instant,
    ) -> Place {
        self.0.join(replica, subject, terms, now)
    }

    /// Whether the gateway ends what is open.
    pub fn is_cutting(&self) -> bool {
        self.0.is_cutting()
    }

    /// What is looked for.
    pub fn settings(&self) -> &Settings {
        &self.1
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
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
        self.pulse.on_end(self.live.epoch);
    }
}

#[cfg(test)]
mod tests;

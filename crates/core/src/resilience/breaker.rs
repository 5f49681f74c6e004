//! The circuit breaker of one replica.
//!
//! ```text
//!           failures in a row, or a share of them           its time is over
//! closed ─────────────────────────────────────────► open ─────────────────────► half-open
//!    ▲  ▲                                             ▲                           │  │
//!    │  └── slow start: few at first ◄── an answer ───┼───────────────────────────┘  │
//!    │                                                └────── it fails ──────────────┘
//!    └── resting: full or paused, for a moment
//! ```
//!
//! Half-open, it gets one request at a time. What clients can cause at will (4xx, aborts, prompts
//! that are too long) is never told to it. A decision reads two atomics of it.

use crate::units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// When a replica is ejected, and how it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Failures in a row that eject it. 0: none do.
    pub failures: u32,
    /// Share of failures that ejects it, from 0 to 1, among the requests of the last ten seconds,
    /// if those are at least 20. 0: none does.
    pub failure_share: f64,
    /// How long it is ejected, the first time; each further time twice as long, up to five minutes.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub ejection: Duration,
    /// How long it takes a replica that comes back to get its full share again.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub slow_start: Duration,
    /// Share of replicas that must be left, from 0 to 1: with fewer, ejections count for nothing.
    pub panic_threshold: f64,
    /// An engine that says that it has requests and makes nothing for so long is stuck. `None`:
    /// that is not looked at.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub stuck_after: Option<Duration>,
}

/// The breaker.
#[derive(Debug)]
pub struct Breaker {
    origin: Instant,
    /// Nanoseconds from the origin until when it gets nothing. 0: it is closed.
    shut_until: AtomicU64,
    /// Nanoseconds from the origin to its return. 0: long ago.
    returned: AtomicU64,
    /// Elsewhere: only answers and failures write into it.
    book: Box<Mutex<Book>>,
}

/// How it stands with a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It gets requests.
    Closed,
    /// It was full or paused a moment ago.
    Resting,
    /// It gets nothing: it has failed, or is told to end.
    Open,
    /// It gets one request at a time.
    HalfOpen,
}

#[derive(Debug)]
struct Book {
    settings: Settings,
    standing: Standing,
    /// Failures since the last answer.
    in_a_row: u32,
    /// Ejections without much time between them.
    ejections: u32,
    /// All of them.
    total: u64,
    /// When it was closed again.
    closed: Option<Instant>,
    /// Answers and failures of this window, and of the one before.
    windows: [Window; 2],
    window_began: Instant,
}

#[derive(Debug, Clone, Copy, Default)]
struct Window {
    answers: u32,
    failures: u32,
}

/// Half of the time over which shares are taken.
const WINDOW: Duration = Duration::from_secs(5);
/// Fewer requests say nothing of a share.
const LEAST: u32 = 20;
/// Longest ejection.
const LONGEST: Duration = Duration::from_mins(5);
/// How long a replica that is full or paused is left alone.
const REST: Duration = Duration::from_secs(1);
/// How long a replica that gives requests up gets nothing: vLLM ends within that time, or goes on.
const DRAIN: Duration = Duration::from_secs(10);
/// How long the request that tries a replica is waited for before there is another.
const PROBE: Duration = Duration::from_secs(5);
/// The share of its work that a replica gets when it comes back.
const LEAST_SHARE: f64 = 0.1;

impl Default for Settings {
    /// Five failures in a row or half of them, for 10 s; 30 s of slow start; half of the replicas;
    /// two minutes without a token.
    fn default() -> Self {
        Self {
            failures: 5,
            failure_share: 0.5,
            ejection: Duration::from_secs(10),
            slow_start: Duration::from_secs(30),
            panic_threshold: 0.5,
            stuck_after: Some(Duration::from_mins(2)),
        }
    }
}

// === impl Breaker ===

impl Breaker {
    /// A closed one.
    pub fn new(settings: Settings, now: Instant) -> Self {
        Self {
            origin: now,
            shut_until: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            book: Mutex::new(Book::new(settings, now)).into(),
        }
    }

    /// Its settings.
    pub fn settings(&self) -> Settings {
        self.book().settings
    }

    /// Has other settings from now on.
    pub fn set(&self, settings: Settings) {
        self.book().settings = settings;
    }

    /// Whether the replica gets nothing now.
    pub fn is_shut(&self, now: Instant) -> bool {
        let shut_until = self.shut_until.load(Ordering::Relaxed);
        shut_until > 0 && self.since_origin(now) < shut_until
    }

    /// Whether the replica gets nothing now because it failed requests or gives them up: not one
    /// that is only full or paused for a moment.
    pub fn is_ejected(&self, now: Instant) -> bool {
        self.is_shut(now) && self.standing() != Standing::Resting
    }

    /// Whether it starts slowly, and this request is one of those that it is spared. `luck` is from
    /// 0 to 1; with 0 it is spared none.
    pub fn spares(&self, now: Instant, luck: f64) -> bool {
        let returned = self.returned.load(Ordering::Relaxed);
        returned > 0 && luck >= self.share(returned, now)
    }

    /// It has been given a request. One that it was given although it is shut tries nothing.
    pub fn on_pick(&self, now: Instant) {
        if self.shut_until.load(Ordering::Relaxed) == 0 || self.is_shut(now) {
            return;
        }
        let mut book = self.book();
        match book.standing {
            Standing::Closed => {}
            Standing::Resting => self.close(&mut book),
            Standing::Open | Standing::HalfOpen => {
                book.standing = Standing::HalfOpen;
                self.shut(now + PROBE);
            }
        }
    }

    /// It has begun to answer a request. Whether that closed it.
    pub fn on_answer(&self, now: Instant) -> bool {
        let mut book = self.book();
        book.turn(now);
        book.windows[0].answers += 1;
        book.in_a_row = 0;
        // An answer to a request from before the failures proves nothing.
        let is_back = book.standing == Standing::HalfOpen;
        if is_back {
            book.closed = Some(now);
            self.close(&mut book);
            drop(book);
            self.on_return(now);
        }
        is_back
    }

    /// It failed a request. Whether that ejected it.
    pub fn on_failure(&self, now: Instant) -> bool {
        let mut book = self.book();
        book.turn(now);
        book.windows[0].failures += 1;
        book.in_a_row = book.in_a_row.saturating_add(1);
        let Settings { failures, failure_share, .. } = book.settings;
        let is_ill = match book.standing {
            Standing::Open => false,
            Standing::HalfOpen => true,
            Standing::Closed | Standing::Resting => {
                (failures > 0 && book.in_a_row >= failures)
                    || (failure_share > 0.0 && book.share() >= failure_share)
            }
        };
        if is_ill {
            self.eject(&mut book, now);
        }
        is_ill
    }

    /// It is ejected, whatever it did before. Whether that is new.
    pub fn on_death(&self, now: Instant) -> bool {
        let mut book = self.book();
        let is_new = book.standing != Standing::Open;
        if is_new {
            self.eject(&mut book, now);
        }
        is_new
    }

    /// It is full or paused.
    pub fn on_full(&self, now: Instant) {
        let mut book = self.book();
        if matches!(book.standing, Standing::Closed | Standing::Resting) {
            book.standing = Standing::Resting;
            self.shut(now + REST);
        }
    }

    /// It gives up what it has. Whether that is new.
    pub fn on_drain(&self, now: Instant) -> bool {
        let mut book = self.book();
        let is_new = book.standing != Standing::Open;
        book.standing = Standing::Open;
        self.shut(now + DRAIN);
        is_new
    }

    /// It is well again after it was away: it starts slowly, and what it did before is forgotten.
    pub fn on_return(&self, now: Instant) {
        let mut book = self.book();
        book.in_a_row = 0;
        book.windows = [Window::default(); 2];
        if book.standing != Standing::Closed {
            self.close(&mut book);
        }
        let is_slow = !book.settings.slow_start.is_zero();
        drop(book);
        if is_slow {
            self.returned.store(self.since_origin(now).max(1), Ordering::Relaxed);
        }
    }

    /// How it stands with it.
    pub fn standing(&self) -> Standing {
        if self.shut_until.load(Ordering::Relaxed) == 0 {
            return Standing::Closed;
        }
        self.book().standing
    }

    /// How often it was ejected.
    pub fn ejections(&self) -> u64 {
        self.book().total
    }

    fn eject(&self, book: &mut Book, now: Instant) {
        // Who was well for longer than it was ejected begins anew.
        let was_well = book.closed.map(|closed| now.saturating_duration_since(closed));
        let is_closed = book.standing != Standing::HalfOpen;
        if is_closed && was_well.is_some_and(|was_well| was_well > book.ejection()) {
            book.ejections = 0;
        }
        book.ejections = book.ejections.saturating_add(1);
        book.total += 1;
        book.standing = Standing::Open;
        book.in_a_row = 0;
        book.windows = [Window::default(); 2];
        self.shut(now + book.ejection());
    }

    fn shut(&self, until: Instant) {
        self.shut_until.store(self.since_origin(until).max(1), Ordering::Relaxed);
    }

    fn close(&self, book: &mut Book) {
        book.standing = Standing::Closed;
        self.shut_until.store(0, Ordering::Relaxed);
    }

    /// The share of its work that a replica gets at this time after its return: a tenth at first,
    /// growing evenly.
    fn share(&self, returned: u64, now: Instant) -> f64 {
        let since = self.since_origin(now).saturating_sub(returned);
        let whole = self.book().settings.slow_start.as_nanos() as f64;
        let share = LEAST_SHARE + (1.0 - LEAST_SHARE) * (since as f64 / whole);
        if share >= 1.0 {
            self.returned.store(0, Ordering::Relaxed);
        }
        share
    }

    fn since_origin(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.origin).as_nanos() as u64
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Book ===

impl Book {
    const fn new(settings: Settings, now: Instant) -> Self {
        Self {
            settings,
            standing: Standing::Closed,
            in_a_row: 0,
            ejections: 0,
            total: 0,
            closed: None,
            windows: [Window { answers: 0, failures: 0 }; 2],
            window_began: now,
        }
    }

    /// How long the ejection of this number lasts.
    fn ejection(&self) -> Duration {
        let doublings = self.ejections.saturating_sub(1).min(16);
        self.settings.ejection.saturating_mul(1 << doublings).min(LONGEST)
    }

    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.window_began);
        if age < WINDOW {
            return;
        }
        let before = if age < 2 * WINDOW { self.windows[0] } else { Window::default() };
        self.windows = [Window::default(), before];
        self.window_began = now;
    }

    /// The share of failures lately; 0 of too few.
    fn share(&self) -> f64 {
        let sum = |count: fn(&Window) -> u32| self.windows.iter().map(count).sum::<u32>();
        let (answers, failures) = (sum(|window| window.answers), sum(|window| window.failures));
        if answers + failures < LEAST {
            return 0.0;
        }
        f64::from(failures) / f64::from(answers + failures)
    }
}

// === impl Standing ===

impl Standing {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Closed, Self::Resting, Self::Open, Self::HalfOpen];

    /// The name in metrics and in `/status`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Resting => "resting",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[cfg(test)]
#[path = "breaker_tests.rs"]
mod tests;

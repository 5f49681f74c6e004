//! What a replica last said of itself, in words that may be read one by one while another is
//! written: each is true, whichever is newer.

use super::promise::Own;
use serde::Serialize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What a replica says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Report {
    /// Share of the KV cache that requests hold, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Requests that wait in the engine.
    pub waiting: f64,
    /// Requests that run in the engine.
    pub running: f64,
    /// Tokens that its KV cache can hold.
    pub capacity: Option<u64>,
    /// Tokens that the engine has computed and generated since its start.
    pub tokens: Option<f64>,
}

/// The load that a replica last told of, and what has changed since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LastSaid {
    /// Requests that waited.
    pub waiting: f64,
    /// Requests that ran.
    pub running: f64,
    /// Requests that this gateway sent it since, less those that have ended.
    pub sent_since: f64,
}

/// The last report.
#[derive(Debug)]
pub(super) struct Said {
    /// When it was asked for: seconds from the ledger's epoch. NaN: never.
    at: Real,
    kv_usage: Real,
    waiting: Real,
    running: Real,
    capacity: AtomicU64,
    /// Tokens that the engine had computed and generated. NaN: not known.
    made: Real,
    /// What a token is of the capacity; 0 if that is not known.
    token: Real,
    /// What this gateway had there then.
    in_flight: AtomicU32,
    pending: AtomicU32,
    tokens: AtomicU64,
    /// Requests of others there, on the whole.
    others: Real,
}

/// A float that can be shared.
#[derive(Debug)]
pub(super) struct Real(AtomicU64);

/// How much of the mean of others' requests one report makes.
const OTHERS: f64 = 0.1;

// === impl Said ===

impl Said {
    pub(super) fn nothing() -> Self {
        Self {
            at: Real::new(f64::NAN),
            kv_usage: Real::new(f64::NAN),
            waiting: Real::new(0.0),
            running: Real::new(0.0),
            capacity: AtomicU64::new(0),
            made: Real::new(f64::NAN),
            token: Real::new(0.0),
            in_flight: AtomicU32::new(0),
            pending: AtomicU32::new(0),
            tokens: AtomicU64::new(0),
            others: Real::new(0.0),
        }
    }

    /// Takes over a report. Whether the engine has made tokens since the one before.
    pub(super) fn set(&self, report: &Report, own: &Own, at: f64) -> bool {
        let others = (report.waiting + report.running - f64::from(own.in_flight)).max(0.0);
        let mean = self.others.get();
        self.others.set(mean + OTHERS * (others - mean));
        self.kv_usage.set(report.kv_usage.unwrap_or(f64::NAN));
        self.waiting.set(report.waiting);
        self.running.set(report.running);
        self.capacity.store(report.capacity.unwrap_or(0), Ordering::Relaxed);
        let token = report.capacity.filter(|tokens| *tokens > 0).map(|tokens| 1.0 / tokens as f64);
        self.token.set(token.unwrap_or(0.0));
        self.in_flight.store(own.in_flight, Ordering::Relaxed);
        self.pending.store(own.pending, Ordering::Relaxed);
        self.tokens.store(own.tokens, Ordering::Relaxed);
        self.at.set(at);
        let before = self.made.get();
        self.made.set(report.tokens.unwrap_or(f64::NAN));
        report.tokens.is_some_and(|tokens| !before.is_nan() && tokens.to_bits() != before.to_bits())
    }

    /// In seconds. `None`: it never said anything.
    pub(super) fn age(&self, now: f64) -> Option<f64> {
        let age = now - self.at.get();
        (!age.is_nan()).then(|| age.max(0.0))
    }

    pub(super) fn capacity(&self) -> Option<u64> {
        Some(self.capacity.load(Ordering::Relaxed)).filter(|capacity| *capacity > 0)
    }

    /// The load as it was told.
    pub(super) fn last(&self, own: &Own) -> LastSaid {
        let then = self.in_flight.load(Ordering::Relaxed);
        LastSaid {
            waiting: self.waiting.get(),
            running: self.running.get(),
            sent_since: f64::from(own.in_flight) - f64::from(then),
        }
    }

    /// Requests there that are not ours.
    pub(super) fn others(&self, certainty: f64) -> f64 {
        let own = f64::from(self.in_flight.load(Ordering::Relaxed));
        let said = (self.waiting.get() + self.running.get() - own).max(0.0);
        certainty * said + (1.0 - certainty) * self.others.get()
    }

    /// Requests in the engine's queue. All that have no output may be there, for all we know
    /// ourselves.
    pub(super) fn waiting(&self, own: &Own, certainty: f64) -> f64 {
        let pending = f64::from(own.pending);
        let sent_since = pending - f64::from(self.pending.load(Ordering::Relaxed));
        let said = (self.waiting.get() + sent_since).max(0.0);
        certainty * said + (1.0 - certainty) * pending
    }

    /// The share of the cache that requests hold.
    pub(super) fn kv_usage(&self, own: &Own, certainty: f64) -> Option<f64> {
        let (said, token) = (self.kv_usage.get(), self.token.get());
        if said.is_nan() {
            return None;
        }
        if token <= 0.0 {
            return Some(said);
        }
        let sent_since = own.tokens as f64 - self.tokens.load(Ordering::Relaxed) as f64;
        let by_report = (said + sent_since * token).max(0.0);
        // Requests may share blocks: together they hold no more than there is.
        let by_own = (own.tokens as f64 * token).min(1.0);
        Some(certainty * by_report + (1.0 - certainty) * by_own)
    }
}

// === impl Real ===

impl Real {
    pub(super) const fn new(value: f64) -> Self {
        Self(AtomicU64::new(value.to_bits()))
    }

    pub(super) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

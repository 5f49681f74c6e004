//! Atomic values with relaxed ordering, for counters and flags that order no other memory access.

use crate::clock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A `bool` that threads change without a lock.
#[derive(Debug, Default)]
pub struct AtomicFlag(AtomicBool);

/// A count that threads change without a lock.
#[derive(Debug, Default)]
pub struct AtomicCount(AtomicUsize);

/// A total with relaxed atomic access. It only grows until it is taken.
#[derive(Debug, Default)]
pub struct AtomicCounter(AtomicU64);

/// An `f64` that threads change without a lock.
#[derive(Debug, Default)]
pub struct AtomicF64(AtomicU64);

/// A time, or no time, with relaxed atomic access. The number is the nanoseconds of [`clock::nanos`]; 0 means
/// no time.
#[derive(Debug, Default)]
pub struct AtomicInstant(AtomicI64);

impl AtomicFlag {
    /// A flag that is `true` or `false` at first.
    pub const fn new(value: bool) -> Self {
        Self(AtomicBool::new(value))
    }

    /// Returns the current value.
    #[inline]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Replaces the value.
    #[inline]
    pub fn set(&self, value: bool) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Overwrites the flag and returns its previous value.
    #[inline]
    pub fn replace(&self, value: bool) -> bool {
        self.0.swap(value, Ordering::Relaxed)
    }
}

impl AtomicCount {
    /// Creates a counter with this initial value.
    pub const fn new(count: usize) -> Self {
        Self(AtomicUsize::new(count))
    }

    /// Reads the count.
    #[inline]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Replaces the value of the counter.
    #[inline]
    pub fn set(&self, count: usize) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// Returns the count before the addition.
    #[inline]
    pub fn add(&self, added: usize) -> usize {
        self.0.fetch_add(added, Ordering::Relaxed)
    }

    /// Adds to the count, unless the sum would exceed `limit`. Returns whether it was added.
    #[inline]
    pub fn add_within(&self, added: usize, limit: usize) -> bool {
        let sum = |count: usize| count.checked_add(added).filter(|sum| *sum <= limit);
        let relaxed = Ordering::Relaxed;
        self.0.fetch_update(relaxed, relaxed, sum).is_ok()
    }

    /// Must not subtract more than the count: it would wrap around.
    #[inline]
    pub fn sub(&self, subtracted: usize) {
        self.0.fetch_sub(subtracted, Ordering::Relaxed);
    }
}

impl AtomicCounter {
    /// Creates a counter with the value 0.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns the current value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds to the value. Returns the previous value.
    #[inline]
    pub fn add(&self, added: u64) -> u64 {
        self.0.fetch_add(added, Ordering::Relaxed)
    }

    /// Raises the value to `least` if the value is lower.
    #[inline]
    pub fn raise_to(&self, least: u64) {
        self.0.fetch_max(least, Ordering::Relaxed);
    }

    /// Resets the value to 0. Returns the previous value.
    #[inline]
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl AtomicF64 {
    /// A number that begins at `value`. NaN: no value yet.
    pub const fn new(value: f64) -> Self {
        Self(AtomicU64::new(value.to_bits()))
    }

    /// Returns the current value.
    #[inline]
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Replaces the value.
    #[inline]
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Updates an exponential moving average: the new `value` counts with the share `weight`, from 0 to 1. The
    /// first value replaces NaN.
    #[inline]
    pub fn average_in(&self, value: f64, weight: f64) {
        let before = self.get();
        self.set(if before.is_nan() {
            value
        } else {
            before + weight * (value - before)
        });
    }
}

impl AtomicInstant {
    /// Returns the stored time. `None`: no time was set, or it was removed.
    #[inline]
    pub fn get(&self) -> Option<Instant> {
        let nanos = self.0.load(Ordering::Relaxed);
        let distance = Duration::from_nanos(nanos.unsigned_abs());
        match nanos {
            0 => None,
            1.. => Some(clock::epoch() + distance),
            _ => clock::epoch().checked_sub(distance),
        }
    }

    /// Replaces the time, or removes it.
    #[inline]
    pub fn set(&self, time: Option<Instant>) {
        // 0 means that there is no time, so the epoch is stored as the nanosecond after it.
        let nanos = |time| match clock::nanos(time) {
            0 => 1,
            nanos => nanos,
        };
        self.0.store(time.map_or(0, nanos), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_epoch_are_stored() {
        let time = AtomicInstant::default();
        let epoch = clock::epoch();
        let second = Duration::from_secs(1);
        let nanosecond = Duration::from_nanos(1);
        assert_eq!(time.get(), None);
        let before = [second, nanosecond].map(|distance| epoch.checked_sub(distance).unwrap());
        for at in before
            .into_iter()
            .chain([epoch + nanosecond, epoch + second])
        {
            time.set(Some(at));
            assert_eq!(time.get(), Some(at));
        }
        time.set(Some(epoch));
        assert_eq!(
            time.get(),
            Some(epoch + nanosecond),
            "the nearest other time"
        );
        time.set(None);
        assert_eq!(time.get(), None);
    }
}

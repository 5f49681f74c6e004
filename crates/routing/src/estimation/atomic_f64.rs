//! A floating-point number that several threads read and write, and functions that limit a number.

use std::sync::atomic::{AtomicU64, Ordering};

/// An `f64` with relaxed atomic access.
#[derive(Debug, Default)]
pub(super) struct AtomicF64(AtomicU64);

impl AtomicF64 {
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

/// The value, or 0 if it is negative or NaN. [`f64::max`] returns the same, but takes five instructions.
#[inline]
pub(super) fn at_least_0(value: f64) -> f64 {
    if value > 0.0 { value } else { 0.0 }
}

/// The lesser of two numbers, of which `other` is not NaN, with fewer instructions than [`f64::min`].
#[inline]
pub(super) fn at_most(value: f64, other: f64) -> f64 {
    if value < other { value } else { other }
}

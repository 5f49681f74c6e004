//! A floating-point number that several threads read and write, and its lower bound.

use std::sync::atomic::{AtomicU64, Ordering};

/// An `f64` with relaxed atomic access.
#[derive(Debug)]
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

/// A number that is at least 0. NaN counts as 0, as with [`f64::max`], which takes five instructions.
#[inline]
pub(super) fn at_least_0(value: f64) -> f64 {
    if value > 0.0 { value } else { 0.0 }
}

/// The lesser of two numbers, of which `other` is not NaN: see [`at_least_0`].
#[inline]
pub(super) fn at_most(value: f64, other: f64) -> f64 {
    if value < other { value } else { other }
}

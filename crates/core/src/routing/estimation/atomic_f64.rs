//! A floating-point number that several threads read and write.

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

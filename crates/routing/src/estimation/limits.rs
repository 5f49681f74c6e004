//! Functions that limit a number.

/// The value, or 0 if it is negative or NaN. [`f64::max`] returns the same, but takes five instructions.
#[inline]
pub(super) fn at_least_0(value: f64) -> f64 {
    if value > 0.0 { value } else { 0.0 }
}

/// The lesser of two numbers, of which `other` must not be NaN. Takes fewer instructions than [`f64::min`].
#[inline]
pub(super) fn at_most(value: f64, other: f64) -> f64 {
    if value < other { value } else { other }
}

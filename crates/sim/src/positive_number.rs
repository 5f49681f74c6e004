//! A number by which a time can be multiplied or divided.

use std::fmt;
use std::str::FromStr;

/// A number from 0.000001 to 1,000,000,000. A time that is multiplied or divided by it stays a valid
/// `Duration`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PositiveNumber(pub(super) f64);

impl PositiveNumber {
    /// Creates a positive number. `None`: `number` is out of range.
    pub fn new(number: f64) -> Option<Self> {
        (1e-6..=1e9).contains(&number).then_some(Self(number))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for PositiveNumber {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.parse().ok().and_then(Self::new);
        number.ok_or("not a number between 0.000001 and 1000000000")
    }
}

impl fmt::Display for PositiveNumber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

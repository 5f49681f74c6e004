//! The format of single fields of access log lines.

use crate::telemetry::sanitize::LogFieldValue;
use std::fmt::{self, Display};
use std::time::Duration;

/// Writes ` name=value`, or nothing if the value is unknown.
pub(super) fn write_field(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: Option<impl Display>,
) -> fmt::Result {
    value.map_or(Ok(()), |value| {
        write!(f, " {name}={}", LogFieldValue(value))
    })
}

/// Writes the fields of a list in the text form of a line, as [`write_field`] does.
macro_rules! fields {
    ($f:ident, { $($name:literal: $value:expr),* $(,)? }) => {
        $(write_field($f, $name, $value)?;)*
    };
}
pub(super) use fields;

/// Converts a duration to milliseconds, rounded to three decimals.
pub fn millis(duration: Duration) -> f64 {
    seconds_to_millis(duration.as_secs_f64())
}

/// Converts seconds to milliseconds, rounded to three decimals.
pub(super) fn seconds_to_millis(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

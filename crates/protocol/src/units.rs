//! Durations and sizes in configuration and flags: `250ms`, `10m`, `64KiB`, `4MB`.
//!
//! A duration must have a unit, because `30` alone could mean seconds or milliseconds. A size without a unit is
//! in bytes. Parsing a formatted value gives the value again.

mod schema;
mod settings;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::marker::PhantomData;
use std::time;

/// A duration as text, for `#[serde(with = "units::Duration")]`. Both serde and schemars read this attribute:
/// serde calls the functions of this type, and schemars uses its JSON Schema.
pub struct Duration;

/// A size in bytes as text, for `#[serde(with = "units::Size")]`.
pub struct Size;

/// An optional value in the format of [`Duration`] or [`Size`]. `None` is written as `null`.
pub struct Optional<T>(PhantomData<T>);

/// An optional duration as text, for `#[serde(with = "units::OptionalDuration")]`.
pub type OptionalDuration = Optional<Duration>;

/// An optional size in bytes as text, for `#[serde(with = "units::OptionalSize")]`.
pub type OptionalSize = Optional<Size>;

/// Parses and formats durations, in the configuration and in command-line flags.
pub mod duration {
    use std::time::Duration;

    /// The longest duration: a year. The limit prevents an overflow in a deadline, which is the current time
    /// plus the duration.
    pub const MAX_DURATION: Duration = Duration::from_hours(365 * 24);

    /// Why a text is not a valid duration.
    #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
    pub enum DurationError {
        /// The text is not in the form `250ms`, `2s`, `10m` or `1h 30m`.
        #[error("`{0}` is not a duration; write a number and its unit, such as 250ms, 2s or 10m")]
        InvalidFormat(String),
        /// The duration is longer than [`MAX_DURATION`].
        #[error("`{0}` is too long; the longest duration is 365days")]
        TooLong(String),
    }

    /// Parses a number with a unit, such as `250ms`.
    pub fn parse(text: &str) -> Result<Duration, DurationError> {
        // humantime accepts a zero without a unit, so the unit is checked here.
        let has_unit = text
            .trim_end()
            .ends_with(|last: char| last.is_ascii_alphabetic());
        match humantime::parse_duration(text.trim()) {
            Ok(duration) if has_unit && duration > MAX_DURATION => {
                Err(DurationError::TooLong(text.to_owned()))
            }
            Ok(duration) if has_unit => Ok(duration),
            _ => Err(DurationError::InvalidFormat(text.to_owned())),
        }
    }

    /// Formats a duration so that [`parse`] accepts it.
    pub fn format(duration: Duration) -> String {
        humantime::format_duration(duration).to_string()
    }
}

/// Parses and formats sizes in bytes.
pub mod bytes {
    /// Why a text is not a valid size.
    #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
    pub enum BytesError {
        /// The text is not in the form `64KiB`, `4MB` or `65536`.
        #[error("`{0}` is not a size; write whole bytes or a unit, such as 65536, 64KiB or 4MB")]
        InvalidFormat(String),
        /// The number of bytes does not fit into a `usize`.
        #[error("`{0}` is too large; a size must be less than 2^64 bytes")]
        TooLarge(String),
    }

    /// The units with their numbers of bytes, in the order in which [`format()`] tries them.
    const UNITS: [(&str, usize); 6] = [
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1_000),
    ];

    /// Parses a size. Units are case-insensitive.
    pub fn parse(text: &str) -> Result<usize, BytesError> {
        let invalid_format = || BytesError::InvalidFormat(text.to_owned());
        let too_large = || BytesError::TooLarge(text.to_owned());
        let trimmed = text.trim();
        let digit_count = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = trimmed.split_at(digit_count);
        let factor = match unit.trim_start() {
            "" | "B" | "b" => 1,
            unit => {
                let row = UNITS
                    .iter()
                    .find(|(name, _)| name.eq_ignore_ascii_case(unit));
                row.ok_or_else(invalid_format)?.1
            }
        };
        if number.is_empty() {
            return Err(invalid_format());
        }
        // `number` has only digits, so parsing fails only if the number is too large.
        let number: usize = number.parse().map_err(|_| too_large())?;
        number.checked_mul(factor).ok_or_else(too_large)
    }

    /// Formats a size so that [`parse`] accepts it. The unit is the first of GiB, MiB, KiB, GB, MB and kB that
    /// divides the size. If none divides it, the size is in bytes.
    pub fn format(bytes: usize) -> String {
        let first_exact_unit = UNITS
            .iter()
            .find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
        match first_exact_unit {
            Some((name, factor)) => format!("{}{name}", bytes / factor),
            None => bytes.to_string(),
        }
    }
}

impl Duration {
    /// Writes the text of [`duration::format()`].
    pub fn serialize<S: Serializer>(value: &time::Duration, to: S) -> Result<S::Ok, S::Error> {
        duration::format(*value).serialize(to)
    }

    /// Reads the text of [`duration::parse`].
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<time::Duration, D::Error> {
        duration::parse(&from.deserialize_str(TextVisitor)?).map_err(D::Error::custom)
    }
}

impl Optional<Duration> {
    /// Writes the text of [`duration::format()`], or null.
    pub fn serialize<S: Serializer>(
        value: &Option<time::Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(duration::format).serialize(to)
    }

    /// Reads the text of [`duration::parse`], or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<time::Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| duration::parse(&text))
            .transpose()
            .map_err(D::Error::custom)
    }
}

impl Size {
    /// Writes the text of [`bytes::format()`].
    pub fn serialize<S: Serializer>(value: &usize, to: S) -> Result<S::Ok, S::Error> {
        bytes::format(*value).serialize(to)
    }

    /// Reads the text of [`bytes::parse`].
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        bytes::parse(&from.deserialize_str(TextVisitor)?).map_err(D::Error::custom)
    }
}

impl Optional<Size> {
    /// Writes the text of [`bytes::format()`], or null.
    pub fn serialize<S: Serializer>(value: &Option<usize>, to: S) -> Result<S::Ok, S::Error> {
        value.map(bytes::format).serialize(to)
    }

    /// Reads the text of [`bytes::parse`], or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
        #[derive(Deserialize)]
        struct Bytes(#[serde(with = "Size")] usize);

        Ok(Option::<Bytes>::deserialize(from)?.map(|Bytes(bytes)| bytes))
    }
}

/// Reads a value as text. It accepts numbers too, because some configuration formats parse a size without a
/// unit as a number.
struct TextVisitor;

impl serde::de::Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a number with a unit")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes, duration};
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn durations_with_units_are_parsed() {
        for (text, millis) in [
            ("250ms", 250),
            ("2s", 2_000),
            ("10m", 600_000),
            ("1h 30m", 5_400_000),
            ("0s", 0),
        ] {
            assert_eq!(
                duration::parse(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
    }

    #[test]
    fn a_duration_needs_a_unit() {
        for text in ["30", "0", "", "s", "-1s", "2 parsecs", "1e3s"] {
            let error = duration::parse(text).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "`{text}` is not a duration; write a number and its unit, such as 250ms, \
                     2s or 10m"
                )
            );
        }
        let error = duration::parse("2years").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`2years` is too long; the longest duration is 365days"
        );
    }

    #[test]
    fn sizes_with_and_without_units_are_parsed() {
        for (text, bytes) in [
            ("65536", 65_536),
            ("64KiB", 65_536),
            ("64 kib", 65_536),
            ("32MiB", 33_554_432),
            ("4MB", 4_000_000),
            ("1GiB", 1 << 30),
            ("7B", 7),
            ("0", 0),
        ] {
            assert_eq!(bytes::parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_size_needs_a_known_unit() {
        for text in ["", "KiB", "64K", "-1", "1.5MiB", "4 megabytes", "0x10"] {
            let error = bytes::parse(text).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "`{text}` is not a size; write whole bytes or a unit, such as 65536, 64KiB \
                     or 4MB"
                )
            );
        }
        let error = bytes::parse("99999999999GiB").unwrap_err();
        let expected = "`99999999999GiB` is too large; a size must be less than 2^64 bytes";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn sizes_have_the_first_unit_that_divides_them() {
        for (bytes, text) in [
            (64 << 20, "64MiB"),
            (65_536, "64KiB"),
            (4_000_000, "4MB"),
            (1_001, "1001"),
            (0, "0"),
        ] {
            assert_eq!(bytes::format(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn formatted_values_parse_to_the_same_value(millis in 0_u64..31_536_000_000, size: usize) {
            let written = Duration::from_millis(millis);
            prop_assert_eq!(duration::parse(&duration::format(written)), Ok(written));
            prop_assert_eq!(bytes::parse(&bytes::format(size)), Ok(size));
        }

        #[test]
        fn no_text_makes_parsing_panic(text: String) {
            let _ = duration::parse(&text);
            let _ = bytes::parse(&text);
        }
    }
}

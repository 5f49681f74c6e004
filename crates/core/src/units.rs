//! Durations and sizes as people write them: `250ms`, `10m`, `64KiB`, `4MB`. A duration always
//! names its unit, because `30` has meant seconds to some and milliseconds to others; a plain
//! number of bytes is clear. What is printed can be read back.

pub mod schema;

/// Durations. For `#[serde(with = "units::duration")]` and, by `parse`, for flags.
pub mod duration {
    use super::Text;
    use serde::de::Error as _;
    use serde::{Deserializer, Serializer};
    use std::time::Duration;

    /// The longest: a year. Deadlines are counted from now, and must not overflow.
    pub const MAX: Duration = Duration::from_hours(365 * 24);

    /// Why a text is not a duration.
    #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
    pub enum DurationError {
        /// Not in the form `250ms`, `2s`, `10m` or `1h 30m`.
        #[error("`{0}` is not a duration; write a number and its unit, such as 250ms, 2s or 10m")]
        Form(String),
        /// Longer than [`MAX`].
        #[error("`{0}` is too long; the longest duration is 365days")]
        TooLong(String),
    }

    /// Reads a duration.
    pub fn parse(text: &str) -> Result<Duration, DurationError> {
        // Only zero may go without a unit in humantime. Here it may not either.
        let has_unit = text.trim_end().ends_with(|last: char| last.is_ascii_alphabetic());
        let duration = humantime::parse_duration(text.trim()).ok().filter(|_| has_unit);
        match duration {
            None => Err(DurationError::Form(text.to_owned())),
            Some(duration) if duration > MAX => Err(DurationError::TooLong(text.to_owned())),
            Some(duration) => Ok(duration),
        }
    }

    /// Writes a duration so that [`parse`] reads it back.
    pub fn format(duration: Duration) -> String {
        humantime::format_duration(duration).to_string()
    }

    /// For serde: as [`format()`].
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format(*duration))
    }

    /// For serde: as [`parse`].
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        parse(&from.deserialize_str(Text)?).map_err(D::Error::custom)
    }
}

/// Durations that may be left out: `null` is none. For `#[serde(with = "units::optional_duration")]`.
pub mod optional_duration {
    use super::duration;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    /// For serde: as [`duration::format()`], or null.
    pub fn serialize<S: Serializer>(from: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match from {
            Some(duration) => to.serialize_some(&duration::format(*duration)),
            None => to.serialize_none(),
        }
    }

    /// For serde: as [`duration::parse`], or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| duration::parse(&text)).transpose().map_err(D::Error::custom)
    }
}

/// Sizes in bytes. For `#[serde(with = "units::bytes")]` and, by `parse`, for flags.
pub mod bytes {
    use super::Text;
    use serde::de::Error as _;
    use serde::{Deserializer, Serializer};

    /// Why a text is not a size.
    #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
    pub enum BytesError {
        /// Not in the form `64KiB`, `4MB` or `65536`.
        #[error("`{0}` is not a size; write whole bytes or a unit, such as 65536, 64KiB or 4MB")]
        Form(String),
        /// More than memory can address.
        #[error("`{0}` is too large")]
        TooLarge(String),
    }

    /// The units, in the order in which [`format()`] tries them.
    const UNITS: [(&str, usize); 6] = [
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1_000),
    ];

    /// Reads a size. Units are read in any case.
    pub fn parse(text: &str) -> Result<usize, BytesError> {
        let form = || BytesError::Form(text.to_owned());
        let too_large = || BytesError::TooLarge(text.to_owned());
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = trimmed.split_at(digits);
        let factor = match unit.trim_start() {
            "" | "B" | "b" => 1,
            unit => {
                let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
                known.ok_or_else(form)?.1
            }
        };
        if number.is_empty() {
            return Err(form());
        }
        // Digits alone: what fails is too large.
        let number: usize = number.parse().map_err(|_| too_large())?;
        number.checked_mul(factor).ok_or_else(too_large)
    }

    /// Writes a size so that [`parse`] reads it back, in the largest unit that is exact.
    pub fn format(bytes: usize) -> String {
        let exact = UNITS.iter().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
        match exact {
            Some((name, factor)) => format!("{}{name}", bytes / factor),
            None => bytes.to_string(),
        }
    }

    /// For serde: as [`format()`].
    pub fn serialize<S: Serializer>(bytes: &usize, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format(*bytes))
    }

    /// For serde: as [`parse`].
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        parse(&from.deserialize_str(Text)?).map_err(D::Error::custom)
    }
}

/// Sizes that may be missing. For `#[serde(with = "units::optional_bytes")]`.
pub mod optional_bytes {
    use super::bytes;
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Size(#[serde(deserialize_with = "bytes::deserialize")] usize);

    /// For serde: as [`bytes::format()`], or null.
    pub fn serialize<S: Serializer>(from: &Option<usize>, to: S) -> Result<S::Ok, S::Error> {
        match from {
            Some(bytes) => to.serialize_some(&bytes::format(*bytes)),
            None => to.serialize_none(),
        }
    }

    /// For serde: as [`bytes::parse`], or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
        Ok(Option::<Size>::deserialize(from)?.map(|Size(bytes)| bytes))
    }
}

/// The text of a value. A format that tells numbers from text may hand over a number.
struct Text;

impl serde::de::Visitor<'_> for Text {
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
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in
            [("250ms", 250), ("2s", 2_000), ("10m", 600_000), ("1h 30m", 5_400_000), ("0s", 0)]
        {
            assert_eq!(duration::parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn a_duration_without_a_unit_is_refused_with_examples() {
        for text in ["30", "0", "", "s", "-1s", "2 parsecs", "1e3s"] {
            let error = duration::parse(text).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "`{text}` is not a duration; write a number and its unit, such as 250ms, 2s or 10m"
                )
            );
        }
        let error = duration::parse("2years").unwrap_err();
        assert_eq!(error.to_string(), "`2years` is too long; the longest duration is 365days");
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
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
    fn a_size_in_an_unknown_unit_is_refused_with_examples() {
        for text in ["", "KiB", "64K", "-1", "1.5MiB", "4 megabytes", "0x10"] {
            let error = bytes::parse(text).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "`{text}` is not a size; write whole bytes or a unit, such as 65536, 64KiB or 4MB"
                )
            );
        }
        let error = bytes::parse("99999999999GiB").unwrap_err();
        assert_eq!(error.to_string(), "`99999999999GiB` is too large");
    }

    #[test]
    fn sizes_are_written_in_the_largest_exact_unit() {
        for (bytes, text) in
            [(64 << 20, "64MiB"), (65_536, "64KiB"), (4_000_000, "4MB"), (1_001, "1001"), (0, "0")]
        {
            assert_eq!(bytes::format(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(millis in 0_u64..31_536_000_000, size: usize) {
            let written = Duration::from_millis(millis);
            prop_assert_eq!(duration::parse(&duration::format(written)), Ok(written));
            prop_assert_eq!(bytes::parse(&bytes::format(size)), Ok(size));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = duration::parse(&text);
            let _ = bytes::parse(&text);
        }
    }
}

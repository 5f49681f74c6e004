//! Calendar periods in UTC, counted from 1970, so that all gateways have the same number for a period.

use serde::Deserialize;
use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};
use tokenweir_protocol::named_enum;

named_enum! {
    /// A period in UTC in which a quota can be used.
    #[derive(PartialOrd, Ord, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum QuotaPeriod {
        /// A minute of the clock, from second 0 to second 59.
        Minute = "minute",
        /// A calendar day in UTC, from 0:00 to 24:00.
        Day = "day",
        /// A calendar month in UTC, from its first to its last day.
        Month = "month",
        /// A period without an end, for the quota of open requests.
        Unbounded = "unbounded",
    }
}

const MINUTE_SECONDS: u64 = 60;
const DAY_SECONDS: u64 = 86_400;
/// The second since 1970 at which the unbounded period ends: 4147-08-20.
const END_OF_TIME: u64 = 1 << 36;
const FIRST_YEAR: u64 = 1_970;

impl QuotaPeriod {
    /// The number of the period that contains a second since 1970. The first period is number 0.
    pub fn number_at(self, second: u64) -> u64 {
        match self {
            Self::Minute => second / MINUTE_SECONDS,
            Self::Day => second / DAY_SECONDS,
            Self::Month => month_of(second),
            Self::Unbounded => 0,
        }
    }

    /// The first second of a period, as seconds since 1970.
    pub fn first_second(self, number: u64) -> u64 {
        match self {
            Self::Minute => number * MINUTE_SECONDS,
            Self::Day => number * DAY_SECONDS,
            Self::Month => first_second_of_month(number),
            Self::Unbounded => number * END_OF_TIME,
        }
    }
}

/// The number of the month of a second, both since 1970.
fn month_of(second: u64) -> u64 {
    let time = UNIX_EPOCH + Duration::from_secs(second.min(END_OF_TIME));
    let date = humantime::format_rfc3339_seconds(time).to_string();
    let digits = |range: Range<usize>| date.get(range).and_then(|digits| digits.parse().ok());
    let year: u64 = digits(0..4).unwrap_or(FIRST_YEAR);
    let month: u64 = digits(5..7).unwrap_or(1);
    (year - FIRST_YEAR) * 12 + month - 1
}

/// The first second of a month, both since 1970.
fn first_second_of_month(number: u64) -> u64 {
    let year = FIRST_YEAR + number / 12;
    let month = number % 12 + 1;
    let first = humantime::parse_rfc3339(&format!("{year:04}-{month:02}-01T00:00:00Z"));
    let since_1970 = first
        .ok()
        .and_then(|first| first.duration_since(UNIX_EPOCH).ok());
    since_1970.map_or(END_OF_TIME, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected seconds come from Python's `datetime`.
    #[test]
    fn months_begin_on_their_first_day() {
        let month = QuotaPeriod::Month;
        for (number, second) in [
            (0, 0),
            (1, 2_678_400),
            (26, 68_256_000),
            (360, 946_684_800),
            (362, 951_868_800),
            (683, 1_796_083_200),
            (1_562, 4_107_542_400),
        ] {
            assert_eq!(month.first_second(number), second);
        }
        for number in 0..3_000 {
            let first = month.first_second(number);
            assert_eq!(month.number_at(first), number);
            assert_eq!(month.number_at(first + DAY_SECONDS), number);
            assert!(number == 0 || month.number_at(first - 1) == number - 1);
        }
    }
}

//! Calendar periods in UTC. All gateways number them equally.

use tokenweir_protocol::named_enum;

named_enum! {
    /// A period in UTC in which a quota can be used.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum QuotaPeriod {
        /// From second 0 to second 59.
        Minute = "minute",
        /// From 0:00 to 24:00.
        Day = "day",
        /// From the first to the last day.
        Month = "month",
        /// Without an end, for what is open.
        Unbounded = "unbounded",
    }
}

const MINUTE_SECONDS: u64 = 60;
const DAY_SECONDS: u64 = 86_400;
/// 4147-08-20.
const END_OF_TIME: u64 = 1 << 36;
/// Days in 400 years, after which the calendar repeats.
const DAYS_OF_400_YEARS: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01. Years that begin in March have the leap day at their end.
const DAYS_BEFORE_1970: u64 = 719_468;
/// Months from 0000-03 to 1970-01.
const MONTHS_BEFORE_1970: u64 = 1_969 * 12 + 10;

impl QuotaPeriod {
    /// The number of the period that contains a second since 1970. The first period has the number 0.
    pub fn number_at(self, second: u64) -> u64 {
        match self {
            Self::Minute => second / MINUTE_SECONDS,
            Self::Day => second / DAY_SECONDS,
            Self::Month => month_of_day(second / DAY_SECONDS),
            Self::Unbounded => 0,
        }
    }

    /// The first second of a period, since 1970.
    pub fn first_second(self, number: u64) -> u64 {
        match self {
            Self::Minute => number * MINUTE_SECONDS,
            Self::Day => number * DAY_SECONDS,
            Self::Month => first_day_of_month(number) * DAY_SECONDS,
            Self::Unbounded => number * END_OF_TIME,
        }
    }
}

/// The number of the month of a day, both since 1970. The formula is `civil_from_days` of Howard Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms".
fn month_of_day(day: u64) -> u64 {
    let day = day + DAYS_BEFORE_1970;
    let era = day / DAYS_OF_400_YEARS;
    let day = day % DAYS_OF_400_YEARS;
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    (era * 400 + year) * 12 + month - MONTHS_BEFORE_1970
}

/// The first day of a month, both since 1970: `days_from_civil`.
fn first_day_of_month(month: u64) -> u64 {
    let month = month + MONTHS_BEFORE_1970;
    let era = month / 4_800;
    let year = month / 12 % 400;
    let day_of_year = (153 * (month % 12) + 2) / 5;
    let day = year * 365 + year / 4 - year / 100 + day_of_year;
    era * DAYS_OF_400_YEARS + day - DAYS_BEFORE_1970
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds are those of Python's `datetime`.
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

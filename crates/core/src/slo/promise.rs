//! A promise as people write it: `ttft < 1s and itl_p95 < 50ms for 99 %`.

use crate::record::{Outcome, RequestRecord};
use crate::units::duration::{self, DurationError};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Conditions, and the share of requests that must meet all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Promise {
    /// What must hold of a request, besides that it does not fail.
    pub conditions: Vec<Condition>,
    /// The share of requests of which it must: more than 0 and less than 1.
    pub target: f64,
}

/// What must hold of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// It does not fail. Every promise includes it.
    Success,
    /// A time is no longer than this.
    Within(Measure, Duration),
}

/// A time of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Time to first token: [`RequestRecord::ttft`].
    Ttft,
    /// Time per output token: [`RequestRecord::tpot`].
    Tpot,
    /// The whole request: [`RequestRecord::duration`].
    E2e,
    /// Half of the times between tokens are no longer. Where events do not tell their tokens, the
    /// times between events stand for them: here and in all that follow.
    ItlP50,
    /// 95 % of the times between tokens are no longer.
    ItlP95,
    /// 99 % of the times between tokens are no longer.
    ItlP99,
    /// The longest time between tokens.
    ItlMax,
    /// The longest time between two events with output.
    GapMax,
}

/// Why a text is no promise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromiseError {
    /// It does not say of how many requests.
    #[error("`{0}` has no target; write such as `ttft < 1s for 99 %`")]
    NoTarget(String),
    /// Not a share between 0 and 100 %.
    #[error("`{0}` is not a target; write a share between 0 and 100 %, such as 99.9 %")]
    Target(String),
    /// Neither a measure with a limit nor `success`.
    #[error("`{0}` is not a condition; write such as `ttft < 1s`, or `success`")]
    Condition(String),
    /// A measure that does not exist.
    #[error("`{0}` is not measured; {advice}", advice = advice(.0))]
    Measure(String),
    /// Not a duration.
    #[error(transparent)]
    Limit(#[from] DurationError),
    /// A limit that nothing can keep.
    #[error("`{0}`: a limit must be more than 0")]
    Zero(&'static str),
    /// The same measure again.
    #[error("`{0}` stands here twice")]
    Twice(&'static str),
}

/// How similar a word must be to a measure to be taken for a slip, from 0 to 1.
const NEAR: f64 = 0.75;

const SUCCESS: &str = "success";

/// What can be written in a condition.
const MEASURES: &[&str] =
    &["ttft", "tpot", "e2e", "itl_p50", "itl_p95", "itl_p99", "itl_max", "gap_max", SUCCESS];

// === impl Promise ===

impl Promise {
    /// Whether a time of the request is over its limit, as far as it came.
    pub(super) fn is_broken_by(&self, record: &RequestRecord) -> bool {
        self.limits().any(|(measure, limit)| {
            measure.of(record).is_some_and(|seconds| seconds > limit.as_secs_f64())
        })
    }

    /// The times that are limited, and their limits.
    pub fn limits(&self) -> impl Iterator<Item = (Measure, Duration)> {
        self.conditions.iter().filter_map(|condition| match condition {
            Condition::Within(measure, limit) => Some((*measure, *limit)),
            Condition::Success => None,
        })
    }
}

impl FromStr for Promise {
    type Err = PromiseError;

    fn from_str(text: &str) -> Result<Self, PromiseError> {
        let no_target = || PromiseError::NoTarget(text.trim().to_owned());
        let (conditions, target) = text.rsplit_once(" for ").ok_or_else(no_target)?;
        let target = read_target(target.trim())?;
        let mut read: Vec<Condition> = Vec::new();
        for condition in conditions.split(" and ") {
            let condition: Condition = condition.trim().parse()?;
            if read.iter().any(|earlier| earlier.name() == condition.name()) {
                return Err(PromiseError::Twice(condition.name()));
            }
            read.push(condition);
        }
        Ok(Self { conditions: read, target })
    }
}

/// Reads `99.9 %` as 0.999, the nearest number to it.
fn read_target(text: &str) -> Result<f64, PromiseError> {
    let wrong = || PromiseError::Target(text.to_owned());
    let number = text.strip_suffix('%').ok_or_else(wrong)?.trim_end();
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share = format!("{number}e-2").parse().ok().filter(|_| is_plain);
    share.filter(|share| *share > 0.0 && *share < 1.0).ok_or_else(wrong)
}

impl fmt::Display for Promise {
    /// So that it can be read back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, condition) in self.conditions.iter().enumerate() {
            write!(f, "{}{condition}", if index == 0 { "" } else { " and " })?;
        }
        let percent = format!("{:.9}", self.target * 100.0);
        write!(f, " for {} %", percent.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl Serialize for Promise {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Promise {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// The nearest measure, or all of them if none is near.
fn advice(name: &str) -> String {
    let similarity = |measure: &&&str| strsim::jaro_winkler(name, measure);
    let nearest = MEASURES.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match nearest.filter(|nearest| similarity(nearest) > NEAR) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("there are {}", MEASURES.join(", ")),
    }
}

// === impl Condition ===

impl Condition {
    const fn name(self) -> &'static str {
        match self {
            Self::Success => SUCCESS,
            Self::Within(measure, _) => measure.as_str(),
        }
    }
}

impl FromStr for Condition {
    type Err = PromiseError;

    fn from_str(text: &str) -> Result<Self, PromiseError> {
        if text == SUCCESS {
            return Ok(Self::Success);
        }
        let no_condition = || PromiseError::Condition(text.to_owned());
        let (name, limit) = text.split_once('<').ok_or_else(no_condition)?;
        let name = name.trim();
        let measure = Measure::ALL.into_iter().find(|measure| measure.as_str() == name);
        let measure = measure.ok_or_else(|| PromiseError::Measure(name.to_owned()))?;
        let limit = duration::parse(limit.trim())?;
        if limit.is_zero() {
            Err(PromiseError::Zero(measure.as_str()))
        } else {
            Ok(Self::Within(measure, limit))
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str(SUCCESS),
            Self::Within(measure, limit) => {
                write!(f, "{} < {}", measure.as_str(), duration::format(*limit))
            }
        }
    }
}

// === impl Measure ===

impl Measure {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Ttft,
        Self::Tpot,
        Self::E2e,
        Self::ItlP50,
        Self::ItlP95,
        Self::ItlP99,
        Self::ItlMax,
        Self::GapMax,
    ];

    /// The name in a promise.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::E2e => "e2e",
            Self::ItlP50 => "itl_p50",
            Self::ItlP95 => "itl_p95",
            Self::ItlP99 => "itl_p99",
            Self::ItlMax => "itl_max",
            Self::GapMax => "gap_max",
        }
    }

    /// Of a request, in seconds. A quantile is exact to either side of every bound of its scale,
    /// so a limit belongs among the bounds.
    pub fn of(self, record: &RequestRecord) -> Option<f64> {
        let observed = &record.observed;
        let between = if observed.itl.count() > 0 { &observed.itl } else { &observed.gaps };
        match self {
            Self::Ttft => Some(record.ttft().or_else(|| waited(record))?.as_secs_f64()),
            Self::Tpot => Some(record.tpot()?.as_secs_f64()),
            Self::E2e => Some(record.duration().as_secs_f64()),
            Self::ItlP50 => between.quantile(0.5),
            Self::ItlP95 => between.quantile(0.95),
            Self::ItlP99 => between.quantile(0.99),
            Self::ItlMax => between.max(),
            Self::GapMax => observed.gaps.max(),
        }
    }
}

/// How long a client waited for a stream that it left before anything came.
fn waited(record: &RequestRecord) -> Option<Duration> {
    let is_left = record.outcome == Outcome::Cancelled && record.asked.stream;
    is_left.then(|| record.duration())
}

//! Parses the definition of an objective, such as `ttft < 1s and itl_p95 < 50ms for 99 %`.

use crate::record::{Outcome, RequestRecord};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tokenweir_protocol::named_enum;
use tokenweir_protocol::units::duration::{self, DurationError};

/// The conditions of an objective, and the share of requests that must meet all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectiveDefinition {
    /// The conditions that a good request meets. Every objective also requires success, listed or
    /// not.
    pub conditions: Vec<ObjectiveCondition>,
    /// Share of requests that must be good: more than 0 and less than 1.
    pub target: f64,
}

/// A condition that one request must meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectiveCondition {
    /// The request does not fail. Every objective includes this condition.
    Success,
    /// A measure of the request is at most this limit.
    Within(LatencyMeasure, Duration),
}

named_enum! {
    /// A time of a request for which an objective can set a limit.
    #[derive(Hash)]
    pub enum LatencyMeasure {
        /// Time to first token: [`RequestRecord::ttft`].
        Ttft = "ttft",
        /// Time to the first output that is not reasoning: [`RequestRecord::time_to_first_answer`].
        FirstAnswer = "first_answer",
        /// Time per output token: [`RequestRecord::tpot`].
        Tpot = "tpot",
        /// End-to-end time: [`RequestRecord::duration`].
        E2e = "e2e",
        /// Median inter-token latency. If the events do not report their token counts, all `Itl`
        /// measures use the gaps between events instead.
        ItlP50 = "itl_p50",
        /// 95th percentile of the inter-token latency.
        ItlP95 = "itl_p95",
        /// 99th percentile of the inter-token latency.
        ItlP99 = "itl_p99",
        /// Longest inter-token latency.
        ItlMax = "itl_max",
        /// Longest gap between two events with output.
        GapMax = "gap_max",
    }
}

/// Why a text is no objective definition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObjectiveParseError {
    /// The share of requests is missing.
    #[error("`{0}` has no target; write it as in `ttft < 1s for 99 %`")]
    MissingTarget(String),
    /// The target is not a share between 0 and 100 %.
    #[error("`{0}` is not a target; write a share between 0 and 100 %, such as 99.9 %")]
    InvalidTarget(String),
    /// A condition is neither a measure with a limit nor `success`.
    #[error("`{0}` is not a condition; write one such as `ttft < 1s`, or `success`")]
    InvalidCondition(String),
    /// A condition begins with an unknown measure.
    #[error("`{0}` is not a measure of an SLO; {suggestion}", suggestion = suggestion(.0))]
    UnknownMeasure(String),
    /// The limit is not a duration.
    #[error(transparent)]
    InvalidLimit(#[from] DurationError),
    /// A limit is 0, which no request can meet.
    #[error("`{0}`: the limit must be more than 0")]
    ZeroLimit(&'static str),
    /// A condition occurs twice.
    #[error("the condition `{0}` occurs twice")]
    DuplicateCondition(&'static str),
}

/// Jaro-Winkler similarity, from 0 to 1, above which a name is suggested.
const MIN_NAME_SIMILARITY: f64 = 0.75;

const SUCCESS_CONDITION: &str = "success";

impl ObjectiveDefinition {
    /// Whether a measure of the request exceeds its limit. A missing measure exceeds no limit.
    pub(super) fn is_violated_by(&self, record: &RequestRecord) -> bool {
        self.limits().any(|(measure, limit)| {
            measure
                .observed_seconds(record)
                .is_some_and(|seconds| seconds > limit.as_secs_f64())
        })
    }

    /// The limited measures and their limits.
    pub fn limits(&self) -> impl Iterator<Item = (LatencyMeasure, Duration)> {
        self.conditions
            .iter()
            .filter_map(|condition| match condition {
                ObjectiveCondition::Within(measure, limit) => Some((*measure, *limit)),
                ObjectiveCondition::Success => None,
            })
    }
}

impl FromStr for ObjectiveDefinition {
    type Err = ObjectiveParseError;

    fn from_str(text: &str) -> Result<Self, ObjectiveParseError> {
        let no_target = || ObjectiveParseError::MissingTarget(text.trim().to_owned());
        let (conditions, target) = text.rsplit_once(" for ").ok_or_else(no_target)?;
        let target = parse_target(target.trim())?;
        let mut parsed: Vec<ObjectiveCondition> = Vec::new();
        for condition in conditions.split(" and ") {
            let condition: ObjectiveCondition = condition.trim().parse()?;
            if parsed
                .iter()
                .any(|earlier| earlier.name() == condition.name())
            {
                return Err(ObjectiveParseError::DuplicateCondition(condition.name()));
            }
            parsed.push(condition);
        }
        Ok(Self {
            conditions: parsed,
            target,
        })
    }
}

/// Parses a percentage such as `99.9 %` and returns it as a share, such as 0.999. The `%` is required, and the
/// space before it is optional. The share must be above 0 and below 1. The result is the floating-point number
/// nearest to the exact share.
fn parse_target(text: &str) -> Result<f64, ObjectiveParseError> {
    let invalid = || ObjectiveParseError::InvalidTarget(text.to_owned());
    let number = text.strip_suffix('%').ok_or_else(invalid)?.trim_end();
    let is_plain = number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let share = format!("{number}e-2").parse().map_err(|_| invalid())?;
    if is_plain && share > 0.0 && share < 1.0 {
        Ok(share)
    } else {
        Err(invalid())
    }
}

impl fmt::Display for ObjectiveDefinition {
    /// Formats the definition so that it can be parsed again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, condition) in self.conditions.iter().enumerate() {
            write!(f, "{}{condition}", if index == 0 { "" } else { " and " })?;
        }
        let percent = format!("{:.9}", self.target * 100.0);
        write!(
            f,
            " for {} %",
            percent.trim_end_matches('0').trim_end_matches('.')
        )
    }
}

impl Serialize for ObjectiveDefinition {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ObjectiveDefinition {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// Suggests the most similar condition name, or lists all names if no name is similar.
fn suggestion(name: &str) -> String {
    let names = [LatencyMeasure::NAMES, &[SUCCESS_CONDITION]].concat();
    let similarity = |candidate: &&&str| strsim::jaro_winkler(name, candidate);
    let nearest = names
        .iter()
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match nearest.filter(|nearest| similarity(nearest) > MIN_NAME_SIMILARITY) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("write one of {}", names.join(", ")),
    }
}

impl ObjectiveCondition {
    const fn name(self) -> &'static str {
        match self {
            Self::Success => SUCCESS_CONDITION,
            Self::Within(measure, _) => measure.as_str(),
        }
    }
}

impl FromStr for ObjectiveCondition {
    type Err = ObjectiveParseError;

    fn from_str(text: &str) -> Result<Self, ObjectiveParseError> {
        if text == SUCCESS_CONDITION {
            return Ok(Self::Success);
        }
        let no_condition = || ObjectiveParseError::InvalidCondition(text.to_owned());
        let (name, limit) = text.split_once('<').ok_or_else(no_condition)?;
        let name = name.trim();
        let measure = LatencyMeasure::ALL
            .into_iter()
            .find(|measure| measure.as_str() == name);
        let measure =
            measure.ok_or_else(|| ObjectiveParseError::UnknownMeasure(name.to_owned()))?;
        let limit = duration::parse(limit.trim())?;
        if limit.is_zero() {
            Err(ObjectiveParseError::ZeroLimit(measure.as_str()))
        } else {
            Ok(Self::Within(measure, limit))
        }
    }
}

impl fmt::Display for ObjectiveCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str(SUCCESS_CONDITION),
            Self::Within(measure, limit) => {
                write!(f, "{} < {}", measure.as_str(), duration::format(*limit))
            }
        }
    }
}

impl LatencyMeasure {
    /// The value of the measure for a request, in seconds. `None`: the request has no such value. A quantile
    /// comes from a histogram, whose bucket bounds limit its accuracy. So each limit should be a bucket bound.
    pub fn observed_seconds(self, record: &RequestRecord) -> Option<f64> {
        let observed = &*record.observed;
        let gaps = observed.token_gaps();
        match self {
            Self::Ttft => Some(
                record
                    .ttft()
                    .or_else(|| client_wait_time(record))?
                    .as_secs_f64(),
            ),
            Self::FirstAnswer => {
                let answered = record.time_to_first_answer();
                Some(answered.or_else(|| client_wait_time(record))?.as_secs_f64())
            }
            Self::Tpot => Some(record.tpot()?.as_secs_f64()),
            Self::E2e => Some(record.duration().as_secs_f64()),
            Self::ItlP50 => gaps.quantile(0.5),
            Self::ItlP95 => gaps.quantile(0.95),
            Self::ItlP99 => gaps.quantile(0.99),
            Self::ItlMax => gaps.max(),
            Self::GapMax => observed.inter_chunk_latency.max(),
        }
    }
}

/// Time from the request head to the disconnect of the client. For a stream without output, it replaces the
/// TTFT and the time to the first answer. `None`: the client did not disconnect early, or did not request a
/// stream.
fn client_wait_time(record: &RequestRecord) -> Option<Duration> {
    let has_disconnected = record.outcome == Outcome::Cancelled && record.options.stream;
    has_disconnected.then(|| record.duration())
}

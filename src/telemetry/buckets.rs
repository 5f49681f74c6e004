//! The bounds of every histogram: the catalogue's or the configuration's, and the limits of
//! objectives among them, so that the share of requests within a limit can be read off exactly.

use super::catalog;
use super::metric::{Kind, Row};
use std::collections::BTreeMap;
use tokenweir_core::record::Scales;
use tokenweir_core::slo::{Measure, Objective};
use tokenweir_core::spread::{Bounds, MAX_BOUNDS};

/// The bounds that differ from the catalogue's.
#[derive(Debug, Clone, Default)]
pub struct Buckets(BTreeMap<&'static str, Bounds>);

/// Why there are no such buckets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BucketsError {
    /// No histogram has this name.
    #[error("there is no histogram `{0}`")]
    Unknown(String),
    /// Not what bounds are.
    #[error("bounds are more than 0, and each is more than the one before it")]
    Unordered(String),
    /// More than a spread has room for.
    #[error("with the limits of `slos` these are {count} bounds; at most {MAX_BOUNDS}")]
    TooMany {
        /// The metric.
        metric: &'static str,
        /// How many there would be.
        count: usize,
    },
}

const GAPS: &str = "tokenweir_inter_chunk_seconds";
const ITL: &str = "tokenweir_inter_token_seconds";
const CHUNK_TOKENS: &str = "tokenweir_chunk_tokens";

// === impl Buckets ===

impl Buckets {
    /// The bounds of `overrides` by metric, in its unit, and the limits of these objectives.
    pub fn new(
        overrides: &BTreeMap<String, Vec<f64>>,
        objectives: &[Objective],
    ) -> Result<Self, BucketsError> {
        let mut merged: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        for (metric, bounds) in overrides {
            let row = row(metric).ok_or_else(|| BucketsError::Unknown(metric.clone()))?;
            let is_positive = bounds.first().is_some_and(|first| *first > 0.0);
            let is_ascending = bounds.windows(2).all(|pair| pair[0] < pair[1]);
            let is_finite = bounds.iter().all(|bound| bound.is_finite());
            if !(is_positive && is_ascending && is_finite) {
                return Err(BucketsError::Unordered(metric.clone()));
            }
            merged.insert(row.name, bounds.clone());
        }
        for (measure, limit) in objectives.iter().flat_map(|it| it.promise.limits()) {
            for metric in metrics(measure) {
                let own = || row(metric).map(bounds_of).unwrap_or_default().to_vec();
                let bounds = merged.entry(metric).or_insert_with(own);
                let limit = limit.as_secs_f64();
                let place = bounds.partition_point(|bound| *bound < limit);
                if bounds.get(place).is_none_or(|bound| *bound > limit) {
                    bounds.insert(place, limit);
                }
            }
        }
        if let Some((metric, bounds)) = merged.iter().find(|(_, it)| it.len() > MAX_BOUNDS) {
            return Err(BucketsError::TooMany { metric, count: bounds.len() });
        }
        let given = |(metric, bounds): (_, Vec<f64>)| (metric, Bounds::given(&bounds));
        Ok(Self(merged.into_iter().map(given).collect()))
    }

    /// The bounds of a row; none if it is no histogram.
    pub fn of(&self, row: &Row) -> Bounds {
        self.0.get(row.name).cloned().unwrap_or_else(|| Bounds::fixed(bounds_of(row)))
    }

    /// The bounds under which the times and tokens of an answer are counted.
    pub fn scales(&self) -> Scales {
        let own = Scales::default();
        let of = |metric, own| self.0.get(metric).cloned().unwrap_or(own);
        Scales {
            gaps: of(GAPS, own.gaps),
            itl: of(ITL, own.itl),
            chunk_tokens: of(CHUNK_TOKENS, own.chunk_tokens),
        }
    }
}

/// The histograms that a limit is about.
pub fn metrics(measure: Measure) -> &'static [&'static str] {
    match measure {
        Measure::Ttft => &["gen_ai_server_time_to_first_token_seconds"],
        Measure::Tpot => &["gen_ai_server_time_per_output_token_seconds"],
        Measure::E2e => &["gen_ai_server_request_duration_seconds"],
        // Where events do not tell their tokens, the times between events stand for them.
        Measure::ItlP50 | Measure::ItlP95 | Measure::ItlP99 | Measure::ItlMax => &[ITL, GAPS],
        Measure::GapMax => &[GAPS],
    }
}

/// The histograms' names.
pub fn histograms() -> impl Iterator<Item = &'static str> {
    catalog::rows().filter(|row| !bounds_of(row).is_empty()).map(|row| row.name)
}

fn row(metric: &str) -> Option<&'static Row> {
    catalog::rows().find(|row| row.name == metric && !bounds_of(row).is_empty())
}

fn bounds_of(row: &Row) -> &'static [f64] {
    match row.kind {
        Kind::Histogram(bounds) => bounds,
        Kind::Counter | Kind::Gauge => &[],
    }
}

#[cfg(test)]
#[path = "buckets_tests.rs"]
mod tests;

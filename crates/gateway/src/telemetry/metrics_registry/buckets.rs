//! Bucket bounds of the histograms on the metrics page.
//!
//! The bounds of a histogram come from `metrics.buckets` or, if it is not set there, from the catalogue. The
//! latency limits of the objectives in `slos` are added, so that the histogram shows the exact share of
//! requests within a limit.

use crate::metric::MetricDescriptor;
use crate::telemetry::catalog;
use std::collections::BTreeMap;
use tokenweir_protocol::histogram::{BucketBounds, MAX_BUCKET_BOUNDS};
use tokenweir_request::record::ResponseBuckets;
use tokenweir_request::slo::{LatencyMeasure, Objective};

/// The bucket bounds of histograms that differ from the catalogue, because of `metrics.buckets` or a latency
/// limit in `slos`.
#[derive(Debug, Clone, Default)]
pub struct BucketOverrides {
    pub(super) bounds: BTreeMap<&'static str, BucketBounds>,
    /// Whether all histograms are also native histograms.
    pub is_native: bool,
}

/// Why bucket bounds are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BucketOverridesError {
    /// `metrics.buckets` names a histogram that the catalogue does not have.
    #[error("there is no histogram `{0}`")]
    Unknown(String),
    /// The configured bounds of the metric with this name are empty, not above 0, not ascending or
    /// not finite.
    #[error("the bucket bounds of {0} in `metrics.buckets` must be above 0, finite and ascending")]
    InvalidBounds(String),
    /// A histogram has more than [`MAX_BUCKET_BOUNDS`] bounds.
    #[error(
        "{metric} has {count} bucket bounds with the limits of `slos`; \
         at most {MAX_BUCKET_BOUNDS} are possible"
    )]
    TooManyBounds {
        /// The histogram with too many bounds.
        metric: &'static str,
        /// Number of bounds, including the bounds from the limits of objectives.
        count: usize,
    },
}

const INTER_CHUNK_LATENCY_METRIC: &str = "tokenweir_inter_chunk_latency_seconds";
const INTER_TOKEN_LATENCY_METRIC: &str = "tokenweir_inter_token_latency_seconds";
const CHUNK_TOKENS_METRIC: &str = "tokenweir_chunk_tokens";
const CHUNK_TRANSIT_METRIC: &str = "tokenweir_chunk_transit_seconds";

impl BucketOverrides {
    /// Merges the configured bounds with the latency limits of `objectives`. The key of `overrides`
    /// is the name of a metric, and its value has the bounds in the unit of the metric.
    pub fn new(
        overrides: &BTreeMap<String, Vec<f64>>,
        objectives: &[Objective],
    ) -> Result<Self, BucketOverridesError> {
        let mut merged: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        for (metric, bounds) in overrides {
            let histogram = find_histogram(metric)
                .ok_or_else(|| BucketOverridesError::Unknown(metric.clone()))?;
            let is_positive = bounds.first().is_some_and(|first| *first > 0.0);
            let is_ascending = bounds.windows(2).all(|pair| pair[0] < pair[1]);
            let is_finite = bounds.iter().all(|bound| bound.is_finite());
            if !(is_positive && is_ascending && is_finite) {
                return Err(BucketOverridesError::InvalidBounds(metric.clone()));
            }
            merged.insert(histogram.name, bounds.clone());
        }
        let limits = objectives
            .iter()
            .flat_map(|objective| objective.definition.limits());
        for (measure, limit) in limits {
            for metric in metrics(measure) {
                let bounds = merged
                    .entry(metric)
                    .or_insert_with(|| default_bounds(metric).to_vec());
                let limit = limit.as_secs_f64();
                let index = bounds.partition_point(|bound| *bound < limit);
                if bounds.get(index).is_none_or(|bound| *bound > limit) {
                    bounds.insert(index, limit);
                }
            }
        }
        let too_many = merged
            .iter()
            .find(|(_, bounds)| bounds.len() > MAX_BUCKET_BOUNDS);
        if let Some((metric, bounds)) = too_many {
            return Err(BucketOverridesError::TooManyBounds {
                metric,
                count: bounds.len(),
            });
        }
        let to_bounds =
            |(metric, bounds): (_, Vec<f64>)| (metric, BucketBounds::from_slice(&bounds));
        Ok(Self {
            bounds: merged.into_iter().map(to_bounds).collect(),
            is_native: false,
        })
    }

    /// Returns the bucket bounds of a metric. Empty for a metric that is no histogram.
    pub fn bounds_of(&self, row: &MetricDescriptor) -> BucketBounds {
        self.bounds_or(row.name, row.kind.default_bounds())
    }

    fn bounds_for(&self, metric: &str) -> BucketBounds {
        self.bounds_or(metric, default_bounds(metric))
    }

    fn bounds_or(&self, metric: &str, defaults: &'static [f64]) -> BucketBounds {
        let configured = self.bounds.get(metric).cloned();
        let bounds = configured.unwrap_or_else(|| BucketBounds::from_static(defaults));
        if self.is_native {
            bounds.native()
        } else {
            bounds
        }
    }

    /// Returns the bucket bounds of the histograms that the observer fills while a response passes through the
    /// gateway.
    pub fn scales(&self) -> ResponseBuckets {
        ResponseBuckets {
            inter_chunk_latency: self.bounds_for(INTER_CHUNK_LATENCY_METRIC),
            inter_token_latency: self.bounds_for(INTER_TOKEN_LATENCY_METRIC),
            chunk_tokens: self.bounds_for(CHUNK_TOKENS_METRIC),
            chunk_transit: self.bounds_for(CHUNK_TRANSIT_METRIC),
        }
    }
}

/// Returns the names of the histograms that get the limit of an objective on `measure` as a bucket bound.
pub fn metrics(measure: LatencyMeasure) -> &'static [&'static str] {
    match measure {
        LatencyMeasure::Ttft => &["gen_ai_server_time_to_first_token_seconds"],
        LatencyMeasure::FirstAnswer => &["tokenweir_time_to_first_answer_seconds"],
        LatencyMeasure::Tpot => &["gen_ai_server_time_per_output_token_seconds"],
        LatencyMeasure::E2e => &["gen_ai_server_request_duration_seconds"],
        // If the number of tokens per event is unknown, an objective on inter-token latency uses the times
        // between events. So the histogram of these times gets the limit as a bound too.
        LatencyMeasure::ItlP50
        | LatencyMeasure::ItlP95
        | LatencyMeasure::ItlP99
        | LatencyMeasure::ItlMax => &[INTER_TOKEN_LATENCY_METRIC, INTER_CHUNK_LATENCY_METRIC],
        LatencyMeasure::GapMax => &[INTER_CHUNK_LATENCY_METRIC],
    }
}

/// The names of all histograms of the core, which `metrics.buckets` may configure.
pub fn histograms() -> impl Iterator<Item = &'static str> {
    catalog::rows()
        .filter(|row| !row.kind.default_bounds().is_empty())
        .map(|row| row.name)
}

/// Returns the default bucket bounds of a histogram. Empty: no histogram has this name.
fn default_bounds(metric: &str) -> &'static [f64] {
    find_histogram(metric).map_or(&[], |row| row.kind.default_bounds())
}

fn find_histogram(metric: &str) -> Option<&'static MetricDescriptor> {
    catalog::rows().find(|row| row.name == metric && !row.kind.default_bounds().is_empty())
}

#[cfg(test)]
#[path = "buckets_tests.rs"]
mod tests;

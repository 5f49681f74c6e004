//! Compares the client's measurements with the gateway's metrics page before and after a run. A
//! difference of the request counts shows that the gateway served other clients during the run. The
//! client's values are put into the gateway's buckets, so that both quantiles have the same bucket
//! error.

use super::histogram::LatencyHistogram;
use super::statistics::RunStatistics;
use serde::{Deserialize, Serialize};
use std::str;
use tokenweir_core::dialect::MetricSample;
use tokenweir_core::histogram;

/// The compared metrics of one model on one metrics page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GatewayMetricsPage {
    histograms: Vec<CumulativeBuckets>,
    /// Output tokens as counted by the engine.
    output_tokens: f64,
}

/// A histogram of a metrics page.
#[derive(Debug, Clone, Default, PartialEq)]
struct CumulativeBuckets {
    /// Upper bounds without `+Inf`, ascending.
    bounds: Vec<f64>,
    /// Cumulative counts per bound, then the total.
    cumulative_counts: Vec<f64>,
    sum: f64,
}

/// A quantity as measured by the client and by the gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantityComparison {
    /// Name of the quantity.
    pub quantity: String,
    /// The gateway's metric.
    pub metric: String,
    /// The client's values.
    pub client: BucketedSummary,
    /// The gateway's values.
    pub gateway: BucketedSummary,
}

/// Summary of a distribution in the gateway's buckets. In seconds, except for the count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BucketedSummary {
    /// Number of values.
    pub count: u64,
    /// Mean. It is exact, not computed from the buckets.
    pub mean: f64,
    /// Median, interpolated within its bucket. `None` if it is above the last bound or there are no
    /// values.
    pub p50: Option<f64>,
    /// 99th percentile, computed in the same way.
    pub p99: Option<f64>,
}

/// The comparison of all quantities.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatewayComparison {
    /// One row per quantity.
    pub rows: Vec<QuantityComparison>,
    /// Output tokens reported to the client, and output tokens counted by the gateway.
    pub output_tokens: [u64; 2],
    /// The gateway served other requests for this model during the run, or did not see all requests
    /// of the run.
    pub is_shared: bool,
}

/// A compared metric.
struct ComparedMetric {
    quantity: &'static str,
    metric: &'static str,
    /// The client's histogram.
    client_histogram: fn(&RunStatistics) -> &LatencyHistogram,
}

/// The gateway measures from the arrival of a request, so the client's values are those measured
/// from the sending of the request.
const COMPARED_METRICS: [ComparedMetric; 4] = [
    ComparedMetric {
        quantity: "TTFT",
        metric: "gen_ai_server_time_to_first_token_seconds",
        client_histogram: |tally| &tally.service_ttft,
    },
    ComparedMetric {
        quantity: "TBT",
        metric: "tokenweir_inter_chunk_latency_seconds",
        client_histogram: |tally| &tally.gaps,
    },
    ComparedMetric {
        quantity: "TPOT",
        metric: "gen_ai_server_time_per_output_token_seconds",
        client_histogram: |tally| &tally.tpot,
    },
    ComparedMetric {
        quantity: "E2E",
        metric: "gen_ai_server_request_duration_seconds",
        client_histogram: |tally| &tally.service_e2e,
    },
];
const TOKENS_METRIC: &str = "tokenweir_tokens_total";
const MODEL_LABEL: &str = "gen_ai_request_model";

// === impl Page ===

impl GatewayMetricsPage {
    /// Parses the gateway's metrics page. Returns `None` for the page of another server.
    pub fn read(page: &[u8], model: &str) -> Option<Self> {
        let mut read = Self {
            histograms: vec![CumulativeBuckets::default(); COMPARED_METRICS.len()],
            output_tokens: 0.0,
        };
        let mut is_gateway = false;
        for line in page.split(|byte| *byte == b'\n') {
            is_gateway |= line.starts_with(b"tokenweir_build_info");
            if line.starts_with(b"#") {
                continue;
            }
            let end =
                line.iter().position(|byte| matches!(byte, b'{' | b' ')).unwrap_or(line.len());
            let (name, rest) = line.split_at(end);
            let Ok(name) = str::from_utf8(name) else { continue };
            let Some(sample) = MetricSample::parse(rest) else { continue };
            if sample.label(MODEL_LABEL).is_some_and(|label| label == model.as_bytes()) {
                read.add_sample(name, &sample);
            }
        }
        is_gateway.then_some(read)
    }

    fn add_sample(&mut self, name: &str, sample: &MetricSample<'_>) {
        let Some(value) = sample.number() else { return };
        if name == TOKENS_METRIC && sample.label("type") == Some(b"output") {
            self.output_tokens += value;
        }
        let histograms = COMPARED_METRICS.iter().zip(&mut self.histograms);
        for (row, buckets) in histograms {
            match name.strip_prefix(row.metric) {
                Some("_sum") => buckets.sum += value,
                Some("_bucket") => buckets.add(sample.label("le"), value),
                _ => {}
            }
        }
    }

    /// Returns the increase since an earlier page.
    fn since(&self, before: &Self) -> Self {
        let histograms = self.histograms.iter().zip(&before.histograms);
        Self {
            histograms: histograms.map(|(after, before)| after.since(before)).collect(),
            output_tokens: self.output_tokens - before.output_tokens,
        }
    }

    /// Number of streams whose first output the gateway has seen since an earlier page.
    pub fn first_outputs_since(&self, before: &Self) -> u64 {
        self.since(before).histograms.first().map_or(0, CumulativeBuckets::count)
    }

    /// Number of requests that ended at the gateway since an earlier page.
    pub fn finished_requests_since(&self, before: &Self) -> u64 {
        self.since(before).histograms.last().map_or(0, CumulativeBuckets::count)
    }

    /// Compares the client's measurements with the increase since an earlier page.
    pub fn beside(&self, before: &Self, tally: &RunStatistics) -> GatewayComparison {
        let added = self.since(before);
        let rows = COMPARED_METRICS.iter().zip(&added.histograms).map(|(row, buckets)| {
            let client = (row.client_histogram)(tally);
            QuantityComparison {
                quantity: row.quantity.to_owned(),
                metric: row.metric.to_owned(),
                client: BucketedSummary {
                    mean: client.mean(),
                    ..BucketedSummary::from_counts(
                        &buckets.bounds,
                        &count_in_buckets(client, &buckets.bounds),
                    )
                },
                gateway: buckets.summary(),
            }
        });
        let ended = added.histograms.last().map_or(0, CumulativeBuckets::count);
        let sent = tally.counts.served + tally.counts.failed;
        GatewayComparison {
            rows: rows.collect(),
            output_tokens: [tally.counts.output_tokens, added.output_tokens.round() as u64],
            is_shared: ended != sent,
        }
    }
}

/// Counts the values per bucket of these ascending upper bounds in seconds. The last count is that
/// of the values above all bounds.
fn count_in_buckets(histogram: &LatencyHistogram, bounds: &[f64]) -> Vec<u64> {
    let mut counts = vec![0; bounds.len() + 1];
    for (value, count) in histogram.buckets() {
        counts[bounds.partition_point(|bound| *bound < value)] += u64::from(count);
    }
    counts
}

// === impl CumulativeBuckets ===

impl CumulativeBuckets {
    fn add(&mut self, bound: Option<&[u8]>, value: f64) {
        let bound: Option<f64> = bound.and_then(|text| str::from_utf8(text).ok()?.parse().ok());
        let Some(bound) = bound else { return };
        let index = self.bounds.partition_point(|existing| *existing < bound);
        if self.cumulative_counts.is_empty() {
            self.cumulative_counts.push(0.0);
        }
        if bound.is_finite() && self.bounds.get(index) != Some(&bound) {
            self.bounds.insert(index, bound);
            self.cumulative_counts.insert(index, 0.0);
        }
        self.cumulative_counts[index] += value;
    }

    /// Returns the increase since an earlier page. That page can lack bounds, because a series
    /// appears with its first value.
    fn since(&self, before: &Self) -> Self {
        let count_before = |bound: Option<&f64>| match bound {
            Some(bound) => {
                let index =
                    before.bounds.iter().position(|existing| existing.total_cmp(bound).is_eq());
                index.map_or(0.0, |index| before.cumulative_counts[index])
            }
            None => before.cumulative_counts.last().copied().unwrap_or(0.0),
        };
        let cumulative_counts = self.cumulative_counts.iter().enumerate();
        Self {
            bounds: self.bounds.clone(),
            cumulative_counts: cumulative_counts
                .map(|(index, count)| count - count_before(self.bounds.get(index)))
                .collect(),
            sum: self.sum - before.sum,
        }
    }

    fn count(&self) -> u64 {
        self.cumulative_counts.last().copied().unwrap_or(0.0).round() as u64
    }

    fn summary(&self) -> BucketedSummary {
        let mut below = 0.0;
        let counts = self.cumulative_counts.iter().map(|cumulative| {
            let count = cumulative - below;
            below = *cumulative;
            count.max(0.0).round() as u64
        });
        let quantiles = BucketedSummary::from_counts(&self.bounds, &counts.collect::<Vec<_>>());
        BucketedSummary { mean: self.sum / self.count().max(1) as f64, ..quantiles }
    }
}

// === impl BucketedSummary ===

impl BucketedSummary {
    fn from_counts(bounds: &[f64], counts: &[u64]) -> Self {
        let narrow = |count: &u64| u32::try_from(*count).unwrap_or(u32::MAX);
        let narrow: Vec<u32> = counts.iter().map(narrow).collect();
        let at =
            |q| histogram::bucket_quantile(bounds, &narrow, q).filter(|value| value.is_finite());
        Self { count: counts.iter().sum(), mean: 0.0, p50: at(0.5), p99: at(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_lab::results::LatencyObjectives;

    fn page(count: u32, sum: f64) -> String {
        let series = |backend: &str, model: &str| {
            let labels = format!("gen_ai_request_model=\"{model}\",backend=\"{backend}\"");
            format!(
                "gen_ai_server_time_to_first_token_seconds_bucket{{{labels},le=\"0.1\"}} {}\n\
                 gen_ai_server_time_to_first_token_seconds_bucket{{{labels},le=\"0.5\"}} {count}\n\
                 gen_ai_server_time_to_first_token_seconds_bucket{{{labels},le=\"+Inf\"}} {count}\n\
                 gen_ai_server_time_to_first_token_seconds_sum{{{labels}}} {sum}\n",
                count / 2
            )
        };
        format!(
            "# HELP x y\ntokenweir_build_info{{version=\"1\"}} 1\n{}{}{}",
            series("a", "m"),
            series("b", "m"),
            series("a", "another")
        )
    }

    #[test]
    fn the_increase_is_summed_over_backends_and_only_for_the_model() {
        let read = |text: String| GatewayMetricsPage::read(text.as_bytes(), "m").unwrap();
        let (before, after) = (read(page(2, 0.3)), read(page(12, 2.3)));
        assert_eq!(after.first_outputs_since(&before), 20);
        let mut tally = RunStatistics::new(LatencyObjectives::new(1.0, 1.0));
        tally.service_ttft.record_seconds(0.3);
        let row = &after.beside(&before, &tally).rows[0];
        assert_eq!((row.gateway.count, row.client.count), (20, 1));
        assert!((row.gateway.mean - 0.2).abs() < 1e-9 && (row.client.mean - 0.3).abs() < 1e-9);
        assert_eq!(row.gateway.p50, Some(0.1));
        // One value in the bucket from 0.1 to 0.5, so the p50 is interpolated to the middle of the
        // bucket.
        assert_eq!(row.client.p50.map(|p50| (p50 * 1e3).round()), Some(300.0));
    }

    #[test]
    fn values_are_counted_in_the_buckets_of_other_bounds() {
        let mut histogram = LatencyHistogram::default();
        for seconds in [0.0, 0.004, 0.006, 0.5, 99.0] {
            histogram.record_seconds(seconds);
        }
        assert_eq!(count_in_buckets(&histogram, &[0.005, 0.01, 1.0]), [2, 1, 1, 1]);
    }

    #[test]
    fn a_page_without_series_is_empty_and_the_page_of_another_server_is_none() {
        let empty =
            GatewayMetricsPage::read(b"tokenweir_build_info{version=\"1\"} 1\n", "m").unwrap();
        let after = GatewayMetricsPage::read(page(4, 1.0).as_bytes(), "m").unwrap();
        assert_eq!(after.first_outputs_since(&empty), 8);
        assert_eq!(GatewayMetricsPage::read(b"vllm:num_requests_running 1\n", "m"), None);
    }
}

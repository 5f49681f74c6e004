//! Compares the measurements of the benchmark client with the metrics of the gateway. The metrics of a run
//! are the difference between two metrics pages, from before and after the run. If the request counts differ,
//! the gateway served other clients during the run. The values of the client are counted in the buckets of
//! the gateway, so that the quantiles of both have the same bucket error.

use super::histogram::LatencyHistogram;
use super::statistics::RunStatistics;
use serde::{Deserialize, Serialize};
use std::str;
use tokenweir_engine::dialect::MetricSample;
use tokenweir_protocol::histogram;

/// The compared metrics of one model, read from one metrics page of the gateway.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GatewayMetricsPage {
    /// One histogram for each row of [`COMPARED_METRICS`], in the order of the rows.
    histograms: Vec<CumulativeBuckets>,
    /// Number of output tokens that the gateway counted since its start.
    output_tokens: f64,
}

/// A histogram of a metrics page, added up over all time series of one model.
#[derive(Debug, Clone, Default, PartialEq)]
struct CumulativeBuckets {
    /// Upper bound of each bucket in seconds, ascending, and the number of values up to it. The last bound is
    /// infinity.
    buckets: Vec<(f64, f64)>,
    /// Sum of all values of the histogram, in seconds.
    sum: f64,
}

/// One latency as measured by the benchmark client and by the gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuantityComparison {
    /// Name of the latency, such as `TTFT`.
    pub quantity: String,
    /// Name of the gateway's histogram metric.
    pub metric: String,
    /// Summary of the values of the benchmark client.
    pub client: BucketedSummary,
    /// Summary of the values of the gateway during the run.
    pub gateway: BucketedSummary,
}

/// Summary of latencies that are counted in the buckets of a gateway histogram. All fields except the count
/// are in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BucketedSummary {
    /// Number of latencies.
    pub count: u64,
    /// Mean of the latencies, computed from their exact sum and not from the buckets.
    pub mean: f64,
    /// Median, interpolated within its bucket. `None`: there are no values, or the median is above
    /// the last bound.
    pub p50: Option<f64>,
    /// 99th percentile, interpolated within its bucket. `None`: there are no values, or the percentile is
    /// above the last bound.
    pub p99: Option<f64>,
}

/// The comparison of the measurements of the client with those of the gateway for the same
/// requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatewayComparison {
    /// One row for each latency.
    pub rows: Vec<QuantityComparison>,
    /// Number of output tokens that the client counted, and number that the gateway counted.
    pub output_tokens: [u64; 2],
    /// Whether the request counts of the client and the gateway differ. If so, the gateway served other
    /// requests for this model during the run, or did not see all requests of the run.
    pub is_shared: bool,
}

/// A latency that is compared: its name, the name of the gateway's histogram metric, and the histogram of the
/// client.
type ComparedMetric = (
    &'static str,
    &'static str,
    fn(&RunStatistics) -> &LatencyHistogram,
);

/// The compared latencies. The gateway measures from the arrival of a request, so the client's values count
/// from the actual send time.
const COMPARED_METRICS: [ComparedMetric; 4] = [
    (
        "TTFT",
        "gen_ai_server_time_to_first_token_seconds",
        |client| &client.service_ttft,
    ),
    ("TBT", "tokenweir_inter_chunk_latency_seconds", |client| {
        &client.gaps
    }),
    (
        "TPOT",
        "gen_ai_server_time_per_output_token_seconds",
        |client| &client.tpot,
    ),
    ("E2E", "gen_ai_server_request_duration_seconds", |client| {
        &client.service_e2e
    }),
];
const TOKENS_METRIC: &str = "tokenweir_tokens_total";
const MODEL_LABEL: &str = "gen_ai_request_model";

impl GatewayMetricsPage {
    /// Parses a metrics page of the gateway and keeps the metrics of `model`. `None`: the page is not from a
    /// gateway.
    pub fn read(page: &[u8], model: &str) -> Option<Self> {
        let mut metrics = Self {
            histograms: vec![CumulativeBuckets::default(); COMPARED_METRICS.len()],
            output_tokens: 0.0,
        };
        let mut is_gateway = false;
        for (name, sample) in MetricSample::of_page(page) {
            is_gateway |= name == "tokenweir_build_info";
            if sample
                .label(MODEL_LABEL)
                .is_some_and(|label| label == model.as_bytes())
            {
                metrics.add_sample(name, &sample);
            }
        }
        is_gateway.then_some(metrics)
    }

    fn add_sample(&mut self, name: &str, sample: &MetricSample<'_>) {
        let Some(value) = sample.number() else { return };
        if name == TOKENS_METRIC && sample.label("type") == Some(b"output") {
            self.output_tokens += value;
        }
        let histograms = COMPARED_METRICS.iter().zip(&mut self.histograms);
        for ((_, metric, _), buckets) in histograms {
            match name.strip_prefix(metric) {
                Some("_sum") => buckets.sum += value,
                Some("_bucket") => buckets.add(sample.label("le"), value),
                _ => {}
            }
        }
    }

    /// Returns the increase of all metrics since an earlier page.
    fn since(&self, before: &Self) -> Self {
        let histograms = self.histograms.iter().zip(&before.histograms);
        Self {
            histograms: histograms
                .map(|(after, before)| after.since(before))
                .collect(),
            output_tokens: self.output_tokens - before.output_tokens,
        }
    }

    /// Number of requests that have ended in the gateway since the earlier page `before`.
    pub fn finished_requests_since(&self, before: &Self) -> u64 {
        self.since(before)
            .histograms
            .last()
            .map_or(0, CumulativeBuckets::count)
    }

    /// Compares the measurements of the client with the increase of the metrics since an earlier
    /// page.
    pub fn beside(&self, before: &Self, statistics: &RunStatistics) -> GatewayComparison {
        let increase = self.since(before);
        let histograms = COMPARED_METRICS.iter().zip(&increase.histograms);
        let rows = histograms.map(|((quantity, metric, client_histogram), buckets)| {
            let client = client_histogram(statistics);
            let bounds = buckets.finite_bounds();
            let client_counts = count_in_buckets(client, &bounds);
            QuantityComparison {
                quantity: (*quantity).to_owned(),
                metric: (*metric).to_owned(),
                client: BucketedSummary::new(&bounds, &client_counts, client.mean()),
                gateway: BucketedSummary::new(&bounds, &buckets.counts(), buckets.mean()),
            }
        });
        let ended = increase
            .histograms
            .last()
            .map_or(0, CumulativeBuckets::count);
        let sent = statistics.counts.served + statistics.counts.failed;
        GatewayComparison {
            rows: rows.collect(),
            output_tokens: [
                statistics.counts.output_tokens,
                increase.output_tokens.round() as u64,
            ],
            is_shared: ended != sent,
        }
    }
}

/// Counts the values of a histogram in other buckets. `bounds`: upper bounds of the buckets in seconds,
/// ascending. The last count is the number of values above all bounds.
fn count_in_buckets(histogram: &LatencyHistogram, bounds: &[f64]) -> Vec<u64> {
    let mut counts = vec![0; bounds.len() + 1];
    for (value, count) in histogram.buckets() {
        counts[bounds.partition_point(|bound| *bound < value)] += u64::from(count);
    }
    counts
}

impl CumulativeBuckets {
    /// Adds the value of a `_bucket` series. `le`: the value of its label `le`, which is the upper bound of
    /// the bucket.
    fn add(&mut self, le: Option<&[u8]>, value: f64) {
        let bound: Option<f64> = le.and_then(|text| str::from_utf8(text).ok()?.parse().ok());
        let Some(bound) = bound else { return };
        let index = self
            .buckets
            .partition_point(|(existing, _)| *existing < bound);
        if self
            .buckets
            .get(index)
            .is_none_or(|(existing, _)| *existing > bound)
        {
            self.buckets.insert(index, (bound, 0.0));
        }
        self.buckets[index].1 += value;
    }

    /// Returns the increase since an earlier page. The earlier page can lack some bounds, because a series
    /// appears on the page only with its first value.
    fn since(&self, before: &Self) -> Self {
        let count_before = |bound: f64| {
            let mut earlier = before.buckets.iter();
            let bucket = earlier.find(|(existing, _)| existing.total_cmp(&bound).is_eq());
            bucket.map_or(0.0, |(_, count)| *count)
        };
        let increase = |(bound, count): &(f64, f64)| (*bound, count - count_before(*bound));
        let buckets = self.buckets.iter().map(increase).collect();
        Self {
            buckets,
            sum: self.sum - before.sum,
        }
    }

    fn count(&self) -> u64 {
        self.buckets
            .last()
            .map_or(0, |(_, count)| count.round() as u64)
    }

    fn mean(&self) -> f64 {
        self.sum / self.count().max(1) as f64
    }

    fn finite_bounds(&self) -> Vec<f64> {
        let bounds = self.buckets.iter().map(|(bound, _)| *bound);
        bounds.filter(|bound| bound.is_finite()).collect()
    }

    fn counts(&self) -> Vec<u64> {
        let mut below = 0.0;
        let counts = self.buckets.iter().map(|(_, cumulative)| {
            let count = cumulative - below;
            below = *cumulative;
            count.max(0.0).round() as u64
        });
        counts.collect()
    }
}

impl BucketedSummary {
    /// Computes the count and the quantiles from the counts of the buckets.
    fn new(bounds: &[f64], counts: &[u64], mean: f64) -> Self {
        let to_u32 = |count: &u64| u32::try_from(*count).unwrap_or(u32::MAX);
        let counts_u32: Vec<u32> = counts.iter().map(to_u32).collect();
        let quantile = |q| {
            histogram::bucket_quantile(bounds, &counts_u32, q).filter(|value| value.is_finite())
        };
        Self {
            count: counts.iter().sum(),
            mean,
            p50: quantile(0.5),
            p99: quantile(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_replay::results::LatencyObjectives;

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
    fn the_models_increase_is_summed_over_backends() {
        let read = |text: String| GatewayMetricsPage::read(text.as_bytes(), "m").unwrap();
        let before = read(page(2, 0.3));
        let after = read(page(12, 2.3));
        let mut statistics = RunStatistics::new(LatencyObjectives::new(1.0, 1.0));
        statistics.service_ttft.record_seconds(0.3);
        let row = &after.beside(&before, &statistics).rows[0];
        assert_eq!((row.gateway.count, row.client.count), (20, 1));
        assert!((row.gateway.mean - 0.2).abs() < 1e-9 && (row.client.mean - 0.3).abs() < 1e-9);
        assert_eq!(row.gateway.p50, Some(0.1));
        // The bucket from 0.1 to 0.5 has one value, so the p50 is interpolated to the middle of the bucket.
        assert_eq!(row.client.p50.map(|p50| (p50 * 1e3).round()), Some(300.0));
    }

    #[test]
    fn client_latencies_use_the_gateways_buckets() {
        let mut histogram = LatencyHistogram::default();
        for seconds in [0.0, 0.004, 0.006, 0.5, 99.0] {
            histogram.record_seconds(seconds);
        }
        assert_eq!(
            count_in_buckets(&histogram, &[0.005, 0.01, 1.0]),
            [2, 1, 1, 1]
        );
    }

    #[test]
    fn an_empty_page_is_no_other_servers_page() {
        let empty =
            GatewayMetricsPage::read(b"tokenweir_build_info{version=\"1\"} 1\n", "m").unwrap();
        let after = GatewayMetricsPage::read(page(4, 1.0).as_bytes(), "m").unwrap();
        let statistics = RunStatistics::new(LatencyObjectives::new(1.0, 1.0));
        assert_eq!(after.beside(&empty, &statistics).rows[0].gateway.count, 8);
        assert_eq!(
            GatewayMetricsPage::read(b"vllm:num_requests_running 1\n", "m"),
            None
        );
    }
}

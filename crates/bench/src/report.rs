//! The report of a run: the value from which text, JSON and HTML are rendered, and which later runs
//! are compared with.

use super::gateway_metrics::GatewayComparison;
use super::histogram::{LatencyHistogram, LatencySummary};
use super::samples::RequestSamples;
use super::scenario::LoadScenario;
use super::statistics::{RequestCounts, RunStatistics, RunTimeline, SlowRequest};
use serde::{Deserialize, Serialize};
use tokenweir_lab::results::LatencyObjectives;

/// The report of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Version of tokenweir that created the report.
    pub tokenweir: String,
    /// The setup of the run.
    pub run: RunDescription,
    /// Duration in seconds, from the first intended request to the last end.
    pub seconds: f64,
    /// Why the run ended.
    pub termination: RunTermination,
    /// Whether the generator kept up.
    pub generator: GeneratorReport,
    /// Request outcomes and token counts.
    pub counts: RequestCounts,
    /// Rates per second, and shares.
    pub rates: RunRates,
    /// Latency summaries.
    pub latencies: LatencySummaries,
    /// Quantile curves of four latencies, for plots.
    pub curves: LatencyCurves,
    /// The requests with the highest TTFT.
    pub slowest: Vec<SlowRequest>,
    /// Throughput over time.
    pub timeline: RunTimeline,
    /// The comparison with the gateway's metrics, if the run was given an admin address.
    pub gateway: Option<GatewayComparison>,
    /// Single requests.
    pub samples: RequestSamples,
}

/// The setup of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunDescription {
    /// URL of the server.
    pub target: String,
    /// The requested model.
    pub model: String,
    /// The API of the requests.
    pub api: String,
    /// Start time in RFC 3339 format.
    pub started: String,
    /// The load.
    pub scenario: LoadScenario,
    /// Seed of send times and token counts.
    pub seed: u64,
    /// Seed of the prompt words.
    pub salt: u64,
    /// The latency objectives for goodput.
    pub objectives: LatencyObjectives,
    /// Maximum delay of the generator at p99, in seconds.
    pub lag_limit: f64,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunTermination {
    /// All requests ended.
    Complete,
    /// A signal ended the run.
    Interrupted,
    /// The run was stopped because only failures came.
    OnlyFailures,
}

/// Whether the generator kept up. In seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GeneratorReport {
    /// Intended to actual send time, of requests that did not wait for the limit of requests in
    /// flight.
    pub lag: LatencySummary,
    /// Delay of timers of the generator, sampled twenty times per second.
    pub timer_delay: LatencySummary,
    /// Reasons why the results are not valid. Empty for valid results.
    pub problems: Vec<String>,
}

/// Rates per second over the benchmark run, and the shares `goodput` and `cached`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunRates {
    /// Requests served per second.
    pub requests: f64,
    /// Requests per second that met the objectives.
    pub good_requests: f64,
    /// Prompt tokens per second.
    pub input_tokens: f64,
    /// Output tokens per second.
    pub output_tokens: f64,
    /// Share of the ended requests that met the objectives.
    pub goodput: f64,
    /// Share of prompt tokens that came from a prefix cache. `None` if no response reported it.
    pub cached: Option<f64>,
}

/// Latency summaries in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencySummaries {
    /// Intended send time to first output.
    pub ttft: LatencySummary,
    /// Actual send time to first output.
    pub service_ttft: LatencySummary,
    /// Between events with output.
    pub tbt: LatencySummary,
    /// Per output token after the first.
    pub tpot: LatencySummary,
    /// Intended send time to end.
    pub e2e: LatencySummary,
    /// Actual send time to end.
    pub service_e2e: LatencySummary,
}

/// Values in seconds at the quantiles of [`CURVE_QUANTILES`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyCurves {
    /// Intended send time to first output.
    pub ttft: Vec<f64>,
    /// Actual send time to first output.
    pub service_ttft: Vec<f64>,
    /// Between events with output.
    pub tbt: Vec<f64>,
    /// Intended send time to end.
    pub e2e: Vec<f64>,
}

/// The quantiles of the curves.
pub const CURVE_QUANTILES: [f64; 17] = [
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9999,
];

/// How a run ended.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Why the run ended.
    pub ending: RunTermination,
}

// === impl Report ===

impl BenchReport {
    /// Creates the report of a finished run.
    pub fn new(
        run: RunDescription,
        end: &RunEnd,
        tally: RunStatistics,
        gateway: Option<GatewayComparison>,
    ) -> Self {
        let latencies = LatencySummaries {
            ttft: LatencySummary::from(&tally.ttft),
            service_ttft: LatencySummary::from(&tally.service_ttft),
            tbt: LatencySummary::from(&tally.gaps),
            tpot: LatencySummary::from(&tally.tpot),
            e2e: LatencySummary::from(&tally.e2e),
            service_e2e: LatencySummary::from(&tally.service_e2e),
        };
        let curve = |histogram: &LatencyHistogram| {
            CURVE_QUANTILES.map(|share| histogram.quantile(share)).to_vec()
        };
        let curves = LatencyCurves {
            ttft: curve(&tally.ttft),
            service_ttft: curve(&tally.service_ttft),
            tbt: curve(&tally.gaps),
            e2e: curve(&tally.e2e),
        };
        Self {
            tokenweir: env!("CARGO_PKG_VERSION").to_owned(),
            generator: GeneratorReport::from_statistics(&tally, &run),
            rates: RunRates::from_counts(&tally.counts, end.seconds),
            seconds: end.seconds,
            termination: end.ending,
            counts: tally.counts,
            latencies,
            curves,
            slowest: tally.slowest,
            timeline: tally.timeline,
            gateway,
            samples: tally.samples.sorted(),
            run,
        }
    }

    /// Whether the generator kept up and at least one request was served.
    pub fn is_valid(&self) -> bool {
        self.generator.problems.is_empty() && self.counts.served > 0
    }
}

impl RunDescription {
    /// The request id of request `number` of the plan.
    pub fn request_id(salt: u64, number: u64) -> String {
        format!("bench-{salt:x}-{number}")
    }
}

impl GeneratorReport {
    fn from_statistics(tally: &RunStatistics, run: &RunDescription) -> Self {
        let [lag, wakes] = [&tally.send_delay, &tally.timer_delay].map(LatencySummary::from);
        let millis = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        let limit = millis(run.lag_limit);
        let mut complaints = Vec::new();
        if lag.p99 > run.lag_limit {
            complaints.push(format!(
                "requests were sent {} late at p99; the limit is {limit}",
                millis(lag.p99)
            ));
        }
        if wakes.p99 > run.lag_limit {
            complaints.push(format!(
                "timers of this machine fired {} late at p99, so responses were read late; \
                 the limit is {limit}",
                millis(wakes.p99)
            ));
        }
        if tally.counts.delayed > 0 {
            complaints.push(format!(
                "{} requests waited for the limit of requests in flight; raise --max-in-flight",
                tally.counts.delayed
            ));
        }
        Self { lag, timer_delay: wakes, problems: complaints }
    }
}

impl RunRates {
    fn from_counts(counts: &RequestCounts, seconds: f64) -> Self {
        let per_second = |count: u64| count as f64 / seconds.max(1e-9);
        let ended = (counts.served + counts.failed).max(1) as f64;
        let cached = counts.cached_tokens as f64 / counts.input_tokens.max(1) as f64;
        Self {
            requests: per_second(counts.served),
            good_requests: per_second(counts.good),
            input_tokens: per_second(counts.input_tokens),
            output_tokens: per_second(counts.output_tokens),
            goodput: counts.good as f64 / ended,
            cached: (counts.reported_cached > 0).then_some(cached),
        }
    }
}

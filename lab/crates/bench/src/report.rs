//! The report of a benchmark run. The text, JSON and HTML output is rendered from the report, and later runs
//! are compared with it.

use super::gateway_metrics::GatewayComparison;
use super::histogram::{LatencyHistogram, LatencySummary};
use super::samples::RequestSamples;
use super::scenario::LoadScenario;
use super::statistics::{RequestCounts, RunStatistics, RunTimeline, SlowRequest};
use serde::{Deserialize, Serialize};
use tokenweir_replay::results::LatencyObjectives;

/// The report of a benchmark run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Version of tokenweir that created the report.
    pub tokenweir: String,
    /// The setup of the run: the server, the load, the seeds and the objectives.
    pub run: RunDescription,
    /// Duration of the run, in seconds.
    pub seconds: f64,
    /// Why the run ended.
    pub termination: RunTermination,
    /// The delays of the load generator, and the problems that make the results invalid.
    pub generator: GeneratorReport,
    /// Request outcomes and token counts.
    pub counts: RequestCounts,
    /// Requests and tokens per second, and the shares of good requests and cached tokens.
    pub rates: RunRates,
    /// Latency summaries.
    pub latencies: LatencySummaries,
    /// The values of four latencies at many quantiles, for plots.
    pub curves: LatencyCurves,
    /// The requests with the highest TTFT.
    pub slowest: Vec<SlowRequest>,
    /// Throughput over time.
    pub timeline: RunTimeline,
    /// The comparison with the metrics of the gateway. `None`: the address of the admin listener
    /// was not given, or its metrics page could not be fetched after the run.
    pub gateway: Option<GatewayComparison>,
    /// The sampled requests.
    pub samples: RequestSamples,
}

/// The setup of a run: the server, the load, the seeds and the objectives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunDescription {
    /// URL of the server under test.
    pub target: String,
    /// The model name of the requests.
    pub model: String,
    /// The API of the requests: `completions` or `chat`.
    pub api: String,
    /// Start time of the run in RFC 3339 format.
    pub started: String,
    /// The load scenario.
    pub scenario: LoadScenario,
    /// Seed for the random send times and token counts.
    pub seed: u64,
    /// Seed for the random words of the prompts.
    pub salt: u64,
    /// The latency objectives for goodput.
    pub objectives: LatencyObjectives,
    /// Maximum p99 of the generator's delays, in seconds. Above this value, the results are not valid.
    pub lag_limit: f64,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunTermination {
    /// The run ended after its last request.
    Complete,
    /// A signal ended the run before all requests had ended.
    Interrupted,
    /// The run was stopped because too many successive requests failed.
    OnlyFailures,
}

/// The delays of the load generator in seconds, and the problems that make the results invalid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GeneratorReport {
    /// Time from the intended to the actual send time. Requests that had to wait because of the limit of
    /// requests in flight are excluded.
    pub lag: LatencySummary,
    /// Delays with which timers of the generator fired, measured twenty times per second.
    pub timer_delay: LatencySummary,
    /// Reasons why the results are not valid. Empty: the results are valid.
    pub problems: Vec<String>,
}

/// Rates per second over the benchmark run, and the shares `goodput` and `cached`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunRates {
    /// Served requests per second over the whole run, including the wait for the last responses.
    pub requests: f64,
    /// Served requests per second until the last request was sent. `None`: the version that wrote the report
    /// did not measure this rate, or the run sent only one request.
    #[serde(default)]
    pub requests_while_sending: Option<f64>,
    /// Requests per second that met the latency objectives.
    pub good_requests: f64,
    /// Prompt tokens per second of served requests.
    pub input_tokens: f64,
    /// Output tokens per second of served requests.
    pub output_tokens: f64,
    /// Share, from 0 to 1, of the ended requests that met the latency objectives.
    pub goodput: f64,
    /// Share, from 0 to 1, of the prompt tokens that came from a prefix cache. `None`: no response
    /// reported cached tokens.
    pub cached: Option<f64>,
}

/// Latency summaries in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencySummaries {
    /// Time from the intended send time to the first output.
    pub ttft: LatencySummary,
    /// Time from the actual send time to the first output.
    pub service_ttft: LatencySummary,
    /// Time between consecutive events with output.
    pub tbt: LatencySummary,
    /// Time per output token after the first token, of each response.
    pub tpot: LatencySummary,
    /// Time from the intended send time to the end of the response.
    pub e2e: LatencySummary,
    /// Time from the actual send time to the end of the response.
    pub service_e2e: LatencySummary,
}

/// Values of four latencies in seconds. Each list has one value for each of [`CURVE_QUANTILES`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyCurves {
    /// Time from the intended send time to the first output.
    pub ttft: Vec<f64>,
    /// Time from the actual send time to the first output.
    pub service_ttft: Vec<f64>,
    /// Time between consecutive events with output.
    pub tbt: Vec<f64>,
    /// Time from the intended send time to the end of the response.
    pub e2e: Vec<f64>,
}

/// The quantiles, from 0 to 1, at which [`LatencyCurves`] has values.
pub const CURVE_QUANTILES: [f64; 17] = [
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9999,
];

/// The duration of a finished run, and why the run ended.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Why the run ended.
    pub ending: RunTermination,
}

impl BenchReport {
    /// Creates the report of a finished run.
    pub fn new(
        run: RunDescription,
        end: &RunEnd,
        statistics: RunStatistics,
        gateway: Option<GatewayComparison>,
    ) -> Self {
        let latencies = LatencySummaries {
            ttft: LatencySummary::from(&statistics.ttft),
            service_ttft: LatencySummary::from(&statistics.service_ttft),
            tbt: LatencySummary::from(&statistics.gaps),
            tpot: LatencySummary::from(&statistics.tpot),
            e2e: LatencySummary::from(&statistics.e2e),
            service_e2e: LatencySummary::from(&statistics.service_e2e),
        };
        let curve = |histogram: &LatencyHistogram| {
            CURVE_QUANTILES
                .map(|share| histogram.quantile(share))
                .to_vec()
        };
        let curves = LatencyCurves {
            ttft: curve(&statistics.ttft),
            service_ttft: curve(&statistics.service_ttft),
            tbt: curve(&statistics.gaps),
            e2e: curve(&statistics.e2e),
        };
        Self {
            tokenweir: env!("CARGO_PKG_VERSION").to_owned(),
            generator: GeneratorReport::from_statistics(&statistics, &run),
            rates: RunRates::new(&statistics, end.seconds),
            seconds: end.seconds,
            termination: end.ending,
            counts: statistics.counts,
            latencies,
            curves,
            slowest: statistics.slowest,
            timeline: statistics.timeline,
            gateway,
            samples: statistics.samples.sorted(),
            run,
        }
    }

    /// Whether the results are valid: the generator has no problems, and at least one request was
    /// served.
    pub fn is_valid(&self) -> bool {
        self.generator.problems.is_empty() && self.counts.served > 0
    }
}

impl RunDescription {
    /// The request id that the generator sends with the request `number` of the plan.
    pub fn request_id(salt: u64, number: u64) -> String {
        format!("bench-{salt:x}-{number}")
    }
}

impl GeneratorReport {
    fn from_statistics(statistics: &RunStatistics, run: &RunDescription) -> Self {
        let [lag, timer_delay] =
            [&statistics.send_delay, &statistics.timer_delay].map(LatencySummary::from);
        let millis = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        let limit = millis(run.lag_limit);
        let mut problems = Vec::new();
        if lag.p99 > run.lag_limit {
            problems.push(format!(
                "requests were sent {} late at p99; the limit is {limit}",
                millis(lag.p99)
            ));
        }
        if timer_delay.p99 > run.lag_limit {
            problems.push(format!(
                "timers of this machine fired {} late at p99, so responses were read late; \
                 the limit is {limit}",
                millis(timer_delay.p99)
            ));
        }
        if statistics.counts.delayed > 0 {
            problems.push(format!(
                "{} requests waited for the limit of requests in flight; raise --max-in-flight",
                statistics.counts.delayed
            ));
        }
        Self {
            lag,
            timer_delay,
            problems,
        }
    }
}

impl RunRates {
    fn new(statistics: &RunStatistics, seconds: f64) -> Self {
        let RunStatistics {
            counts, sending, ..
        } = statistics;
        let per_second = |count: u64| count as f64 / seconds.max(1e-9);
        let ended = (counts.served + counts.failed).max(1) as f64;
        let cached = counts.cached_tokens as f64 / counts.input_tokens.max(1) as f64;
        Self {
            requests: per_second(counts.served),
            requests_while_sending: (sending.seconds > 0.0)
                .then(|| sending.served as f64 / sending.seconds),
            good_requests: per_second(counts.good),
            input_tokens: per_second(counts.input_tokens),
            output_tokens: per_second(counts.output_tokens),
            goodput: counts.good as f64 / ended,
            cached: (counts.reported_cached > 0).then_some(cached),
        }
    }
}

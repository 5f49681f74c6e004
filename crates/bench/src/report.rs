//! What is shown of a run: one value that text, JSON and HTML are made of, and that later runs are
//! compared with.

use super::gateway::Beheld;
use super::histogram::{Histogram, Summary};
use super::samples::Samples;
use super::scenario::Scenario;
use super::tally::{Counts, Course, Slow, Tally};
use super::{html, text};
use serde::{Deserialize, Serialize};
use tokenweir_lab::score::Objectives;

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of tokenweir that made it.
    pub tokenweir: String,
    /// What was done.
    pub run: Run,
    /// How long it took, from the first intended request to the last end, in seconds.
    pub seconds: f64,
    /// Why it ended.
    pub ending: Ending,
    /// Whether the generator kept up.
    pub generator: Generator,
    /// How requests ended, and their tokens.
    pub counts: Counts,
    /// Per second and per request.
    pub rates: Rates,
    /// Latencies.
    pub latencies: Latencies,
    /// Quantiles of four of them, for plots.
    pub curves: Curves,
    /// Those that took longest to their first output.
    pub slowest: Vec<Slow>,
    /// How it went.
    pub course: Course,
    /// The gateway's own numbers, if it was asked.
    pub gateway: Option<Beheld>,
    /// Single requests.
    pub samples: Samples,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The server.
    pub target: String,
    /// The model that was asked for.
    pub model: String,
    /// The shape of requests.
    pub api: String,
    /// When it began, as RFC 3339 has it.
    pub started: String,
    /// The load.
    pub scenario: Scenario,
    /// What it was drawn with.
    pub seed: u64,
    /// What the words of prompts were drawn with.
    pub salt: u64,
    /// What good service is.
    pub objectives: Objectives,
    /// The generator may be so late, in seconds.
    pub max_lag: f64,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It was over.
    Complete,
    /// Somebody ended it.
    Interrupted,
    /// Nothing but failures came any more.
    GaveUp,
}

/// Whether the generator kept up. In seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// Intended → sent, of requests for which there was a place.
    pub lag: Summary,
    /// How much later than asked for it woke up, twenty times a second.
    pub wakes: Summary,
    /// Why the results are not valid. Empty: they are.
    pub complaints: Vec<String>,
}

/// Per second of the run, and shares.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Requests served a second.
    pub requests: f64,
    /// Requests a second that met the objectives.
    pub good_requests: f64,
    /// Tokens of their prompts.
    pub input_tokens: f64,
    /// Tokens of their answers.
    pub output_tokens: f64,
    /// Share of the requests that ended which met the objectives.
    pub goodput: f64,
    /// Share of prompt tokens that came from a prefix cache. `None`: no answer told.
    pub cached: Option<f64>,
}

/// Latencies, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// Intended → first output.
    pub ttft: Summary,
    /// Sent → first output.
    pub service_ttft: Summary,
    /// Between events with output.
    pub tbt: Summary,
    /// Per output token after the first.
    pub tpot: Summary,
    /// Intended → end.
    pub e2e: Summary,
    /// Sent → end.
    pub service_e2e: Summary,
}

/// Values in seconds at the shares of [`SHARES`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Intended → first output.
    pub ttft: Vec<f64>,
    /// Sent → first output.
    pub service_ttft: Vec<f64>,
    /// Between events with output.
    pub tbt: Vec<f64>,
    /// Intended → end.
    pub e2e: Vec<f64>,
}

/// Where curves are known.
pub const SHARES: [f64; 17] = [
    0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999, 0.9999,
];

/// How a run went, apart from what was measured.
#[derive(Debug, Clone)]
pub struct End {
    /// In seconds.
    pub seconds: f64,
    /// Why.
    pub ending: Ending,
}

// === impl Report ===

impl Report {
    /// Of what has ended.
    pub fn of(run: Run, end: &End, tally: Tally, gateway: Option<Beheld>) -> Self {
        let latencies = Latencies {
            ttft: tally.ttft.summary(),
            service_ttft: tally.service_ttft.summary(),
            tbt: tally.gaps.summary(),
            tpot: tally.tpot.summary(),
            e2e: tally.e2e.summary(),
            service_e2e: tally.service_e2e.summary(),
        };
        let curve = |histogram: &Histogram| SHARES.map(|share| histogram.quantile(share)).to_vec();
        let curves = Curves {
            ttft: curve(&tally.ttft),
            service_ttft: curve(&tally.service_ttft),
            tbt: curve(&tally.gaps),
            e2e: curve(&tally.e2e),
        };
        Self {
            tokenweir: env!("CARGO_PKG_VERSION").to_owned(),
            generator: Generator::of(&tally, &run),
            rates: Rates::of(&tally.counts, end.seconds),
            seconds: end.seconds,
            ending: end.ending,
            counts: tally.counts,
            latencies,
            curves,
            slowest: tally.slowest,
            course: tally.course,
            gateway,
            samples: tally.samples.sorted(),
            run,
        }
    }

    /// For people, on a terminal.
    pub fn text(&self) -> String {
        text::text(self)
    }

    /// A page that needs nothing else.
    pub fn html(&self) -> String {
        html::html(self)
    }

    /// Whether the generator kept up, and something was served.
    pub fn is_valid(&self) -> bool {
        self.generator.complaints.is_empty() && self.counts.served > 0
    }
}

impl Run {
    /// What a request of it is called.
    pub fn request_id(salt: u64, number: u64) -> String {
        format!("bench-{salt:x}-{number}")
    }
}

impl Generator {
    fn of(tally: &Tally, run: &Run) -> Self {
        let (lag, wakes) = (tally.late.summary(), tally.wakes.summary());
        let millis = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
        let limit = millis(run.max_lag);
        let mut complaints = Vec::new();
        if lag.p99 > run.max_lag {
            complaints.push(format!(
                "requests were sent {} late at p99, and {limit} is the limit",
                millis(lag.p99)
            ));
        }
        if wakes.p99 > run.max_lag {
            complaints.push(format!(
                "this machine woke the generator {} late at p99, so it read answers late; \
                 {limit} is the limit",
                millis(wakes.p99)
            ));
        }
        if tally.counts.waited > 0 {
            complaints.push(format!(
                "{} requests waited for a place in the generator; raise --max-in-flight",
                tally.counts.waited
            ));
        }
        Self { lag, wakes, complaints }
    }
}

impl Rates {
    fn of(counts: &Counts, seconds: f64) -> Self {
        let per_second = |count: u64| count as f64 / seconds.max(1e-9);
        let ended = (counts.served + counts.failed).max(1) as f64;
        let cached = counts.cached_tokens as f64 / counts.input_tokens.max(1) as f64;
        Self {
            requests: per_second(counts.served),
            good_requests: per_second(counts.good),
            input_tokens: per_second(counts.input_tokens),
            output_tokens: per_second(counts.output_tokens),
            goodput: counts.good as f64 / ended,
            cached: (counts.told_cached > 0).then_some(cached),
        }
    }
}

//! Routing policies: pure functions from a request and a snapshot of the candidates to a backend.
//!
//! A policy holds no lock, reads no clock and has no random number generator: the random seed is
//! part of [`RoutingRequest`]. Equal inputs give equal choices.
//!
//! The snapshot has one [`Candidate`] per backend: the estimate that its [`LoadEstimator`] makes
//! for this prompt at this time. The gateway and `tokenweir replay` use the same estimators and
//! policies.

mod candidate_sampler;
pub mod kv_aware;
mod learned_estimates;
mod least_requests;
mod linear_cost;
mod load_estimator;
mod load_hint;
mod load_report;
mod p2c;
mod pending_outputs;
mod prefix_affinity;
mod prefix_hints;
pub mod prefix_table;
mod prompt_fingerprint;
mod random;
mod reservation;
mod round_robin;
mod routing_context;
pub mod saturation;
mod session;
mod slot_estimator;

pub use candidate_sampler::CandidateSampler;
pub use learned_estimates::LearnedEstimates;
pub use linear_cost::{DecodeCost, PrefillCost};
pub use load_estimator::LoadEstimator;
pub use load_report::{LoadReport, ReportedLoad};
pub use prompt_fingerprint::PromptFingerprint;
pub use reservation::{LocalLoad, Reservation, TokenCounts};
pub use routing_context::RoutingContext;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A backend that a policy may pick, with its estimated state for one prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Candidate {
    /// Index of the backend in the fleet.
    #[serde(skip)]
    pub position: usize,
    /// Requests of this gateway in flight at the backend.
    pub in_flight: u32,
    /// Share of the requests, relative to the weights of the other backends. 0 counts as 1.
    pub weight: u32,
    /// Whether the backend has loaded the LoRA adapter of the request. True if the request needs
    /// no adapter.
    pub has_adapter: bool,
    /// Hash key of the backend, for rendezvous hashing of sessions.
    #[serde(skip)]
    pub key: u64,
    /// Estimated tokens of the prompt.
    pub prompt: f64,
    /// Prompt tokens that are probably in the prefix cache of the backend.
    pub cached: f64,
    /// Leading blocks of the prompt that are probably in the prefix cache of the backend.
    pub cached_blocks: u32,
    /// Expected output tokens.
    pub output: f64,
    /// Prompt tokens that the engine has to compute before those of this request.
    pub backlog: f64,
    /// Cost of prefill.
    pub prefill: PrefillCost,
    /// Number of observations on which `prefill` rests, at most about 50.
    pub evidence: f32,
    /// Cost of decode.
    pub decode: DecodeCost,
    /// Whether `prefill` was learned from a first output of this backend.
    pub is_tried: bool,
    /// Whether `prompt` and `output` rest on token usage that this backend reported.
    pub is_told: bool,
    /// Seconds since this gateway last sent a request to the backend. Before the first request:
    /// since the start of its [`LoadEstimator`].
    pub rested: f64,
    /// Estimated requests that wait in the engine.
    pub waiting: f64,
    /// Estimated requests that run in the engine.
    pub running: f64,
    /// The load of the last report. Zeros before the first report.
    pub said: ReportedLoad,
    /// Estimated share of the KV cache that requests hold. More than 1: they do not fit. `None`:
    /// no report had it.
    pub kv_usage: Option<f64>,
    /// Capacity of the KV cache in tokens. `None`: not reported.
    pub capacity: Option<u64>,
    /// Weight of the last report in these estimates, from 0 to 1. It falls with the age of the
    /// report.
    pub certainty: f64,
    /// Seconds until the engine has a free slot for one more sequence. 0: a slot is free, or the
    /// number of slots is not known.
    pub slot_wait: f64,
    /// Seconds for which the oldest request without output has been overdue, or for which all
    /// streams have stalled, whichever is longer. 0: neither holds.
    pub overdue: f64,
}

/// Moves estimates with little evidence to those of the other candidates.
///
/// - A prefill cost moves to the mean of all candidates, weighted by evidence. A learned difference
///   between backends needs evidence: the first output of a backend is often slow, because the
///   engine compiles or loads something.
/// - A candidate without any observation gets the prefill cost of the fastest candidate. With the
///   default cost, a new backend could get no request, or all requests until its first output.
/// - Token counts and decode costs without an observation become the mean of the others.
pub fn impute_missing_estimates(candidates: &mut [Candidate]) {
    shrink_prefill_costs(candidates);
    impute_token_counts(candidates);
    impute_decode_costs(candidates);
}

fn shrink_prefill_costs(candidates: &mut [Candidate]) {
    let evidence_of = |candidate: &Candidate| f64::from(candidate.evidence);
    let evidence: f64 = candidates.iter().map(evidence_of).sum();
    if evidence <= 0.0 {
        return;
    }
    let mean = |read: fn(&PrefillCost) -> f64| {
        let weighted = |candidate: &Candidate| evidence_of(candidate) * read(&candidate.prefill);
        candidates.iter().map(weighted).sum::<f64>() / evidence
    };
    let fleet =
        PrefillCost { base: mean(|cost| cost.base), per_token: mean(|cost| cost.per_token) };
    for candidate in candidates.iter_mut().filter(|candidate| candidate.evidence > 0.0) {
        let squared = evidence_of(candidate).powi(2);
        let own = squared / (squared + HALF_EVIDENCE * HALF_EVIDENCE);
        let blend = |own_value: f64, mean: f64| own * own_value + (1.0 - own) * mean;
        candidate.prefill = PrefillCost {
            base: blend(candidate.prefill.base, fleet.base),
            per_token: blend(candidate.prefill.per_token, fleet.per_token),
        };
    }
    let seconds = |candidate: &&Candidate| candidate.prefill.seconds(REFERENCE_PROMPT_TOKENS);
    let observed = candidates.iter().filter(|candidate| candidate.evidence > 0.0);
    let fastest = observed.min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let Some(cost) = fastest.map(|candidate| candidate.prefill) else { return };
    for candidate in candidates.iter_mut().filter(|candidate| candidate.evidence <= 0.0) {
        candidate.prefill = cost;
    }
}

/// Prompt length in tokens at which the prefill costs of candidates are compared.
const REFERENCE_PROMPT_TOKENS: f64 = 1_000.0;
/// Number of observations at which the own cost and the mean of the fleet count equally.
const HALF_EVIDENCE: f64 = 4.0;

/// Gives candidates without a decode cost the mean of those with one.
fn impute_decode_costs(candidates: &mut [Candidate]) {
    let known =
        || candidates.iter().map(|candidate| candidate.decode).filter(|cost| cost.base > 0.0);
    let count = known().count() as f32;
    if count == 0.0 {
        return;
    }
    let mean = DecodeCost {
        base: known().map(|cost| cost.base).sum::<f32>() / count,
        per_request: known().map(|cost| cost.per_request).sum::<f32>() / count,
    };
    for candidate in candidates.iter_mut().filter(|candidate| candidate.decode.base <= 0.0) {
        candidate.decode = mean;
    }
}

/// Gives candidates without reported usage the mean token counts of those with it: all candidates
/// serve the same model, so the same prompt has about as many tokens at each. `cached` is scaled.
fn impute_token_counts(candidates: &mut [Candidate]) {
    let with_usage = candidates.iter().filter(|candidate| candidate.is_told);
    let sums = with_usage.fold([0.0; 3], |[count, prompt, output], candidate| {
        [count + 1.0, prompt + candidate.prompt, output + candidate.output]
    });
    let [prompt, output] = [sums[1] / sums[0], sums[2] / sums[0]];
    if prompt > 0.0 {
        for candidate in candidates.iter_mut().filter(|candidate| !candidate.is_told) {
            candidate.cached *= prompt / candidate.prompt;
            (candidate.prompt, candidate.output) = (prompt, output);
        }
    }
}

/// The input of a policy besides the candidates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoutingRequest {
    /// Sequence number of the decision, for round robin and for turns among equal candidates.
    pub sequence: u64,
    /// Random number, for the policies that need one.
    pub seed: u64,
    /// Hash of the session. `None`: the request names no session.
    pub session: Option<u64>,
}

/// The choice of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyChoice {
    /// Index among the candidates.
    pub index: usize,
    /// Why the policy chose it: one of [`REASONS`].
    pub reason: &'static str,
}

/// A routing policy.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
#[clap(rename_all = "snake_case")]
pub enum PolicyKind {
    /// The least predicted time to first token, from queue, prompt, cached prefix and KV cache
    /// usage.
    #[default]
    KvAware,
    /// Each backend in turn, by weight.
    RoundRobin,
    /// A random backend, by weight.
    Random,
    /// The fewest requests of this gateway in flight, relative to the weight.
    LeastRequests,
    /// The less loaded of two random backends.
    P2c,
    /// The backend that was sent the longest prefix of the prompt before, unless it is overloaded.
    PrefixAffinity,
    /// The same backend for all requests of a session, unless it is overloaded.
    Session,
}

/// A policy with its settings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Policy {
    /// Algorithm.
    pub kind: PolicyKind,
    /// Settings of [`PolicyKind::KvAware`], which also hold for predictions under other policies.
    pub kv_aware: kv_aware::KvAwareSettings,
}

impl Policy {
    /// Name in the configuration, in metrics and in logs.
    pub const fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Chooses a candidate. `None`: there is no candidate.
    pub fn pick(&self, candidates: &[Candidate], request: &RoutingRequest) -> Option<PolicyChoice> {
        if candidates.len() < 2 {
            return candidates.first().map(|_| PolicyChoice { index: 0, reason: "only_candidate" });
        }
        Some(match self.kind {
            PolicyKind::KvAware => kv_aware::pick(&self.kv_aware, candidates, request),
            PolicyKind::RoundRobin => round_robin::pick(candidates, request),
            PolicyKind::Random => random::pick(candidates, request),
            PolicyKind::LeastRequests => least_requests::pick(candidates, request),
            PolicyKind::P2c => p2c::pick(candidates, request),
            PolicyKind::PrefixAffinity => prefix_affinity::pick(candidates, request),
            PolicyKind::Session => session::pick(candidates, request),
        })
    }
}

impl PolicyKind {
    /// All policies.
    pub const ALL: [Self; 7] = [
        Self::KvAware,
        Self::RoundRobin,
        Self::Random,
        Self::LeastRequests,
        Self::P2c,
        Self::PrefixAffinity,
        Self::Session,
    ];

    /// Name in the configuration, in metrics and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KvAware => "kv_aware",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::LeastRequests => "least_requests",
            Self::P2c => "p2c",
            Self::PrefixAffinity => "prefix_affinity",
            Self::Session => "session",
        }
    }
}

/// Reason of a choice in panic mode: too many backends are ejected, so ejections are ignored.
pub const PANIC: &str = "panic_mode";

/// All reasons of a choice. They are label values of metrics.
pub const REASONS: &[&str] = &[
    "only_candidate",
    "lowest_ttft",
    "cached_prefix",
    "prefix_too_busy",
    "avoids_overdue",
    "avoids_late",
    "all_late",
    "session",
    "session_too_busy",
    "turn",
    "random",
    "fewest_requests",
    "fewer_of_two",
    PANIC,
];

/// Index of the candidate with the lowest cost.
///
/// Candidates within `slack` of the lowest cost are ties. Among ties, the candidate that has been
/// idle longest wins: an idle fleet then shares the requests evenly, and every pooled connection
/// is used now and then. Candidates that have been idle equally long take turns by `turn`.
fn lowest(
    candidates: &[Candidate],
    costs: &(impl Iterator<Item = f64> + Clone),
    slack: f64,
    turn: u64,
) -> usize {
    let limit = costs.clone().fold(f64::INFINITY, f64::min) + slack;
    let ties =
        || candidates.iter().zip(costs.clone()).enumerate().filter(|(_, (_, cost))| *cost <= limit);
    let longest = ties().map(|(_, (candidate, _))| candidate.rested).fold(0.0, f64::max);
    let best = || ties().filter(|(_, (candidate, _))| candidate.rested >= longest);
    let position = (turn % best().count().max(1) as u64) as usize;
    best().nth(position).map_or(0, |(index, _)| index)
}

/// Requests in flight per unit of weight, including the request to be routed.
fn load(candidate: &Candidate) -> f64 {
    f64::from(candidate.in_flight + 1) / f64::from(candidate.weight.max(1))
}

/// [`load`], plus [`OVERDUE_PENALTY`] for a candidate that is overdue: it comes after all others.
fn load_with_overdue_penalty(candidate: &Candidate) -> f64 {
    load(candidate) + if candidate.overdue > 0.0 { OVERDUE_PENALTY } else { 0.0 }
}

/// Load added to an overdue candidate: more requests than any backend has in flight.
const OVERDUE_PENALTY: f64 = 1e9;

/// Index of the candidate that covers `position` when the weights are laid end to end. `position`
/// is taken modulo the sum of the weights.
fn index_at_weight(candidates: &[Candidate], position: u64) -> usize {
    let total: u64 = candidates.iter().map(|candidate| u64::from(candidate.weight.max(1))).sum();
    let mut rest = position % total.max(1);
    for (index, candidate) in candidates.iter().enumerate() {
        let weight = u64::from(candidate.weight.max(1));
        if rest < weight {
            return index;
        }
        rest -= weight;
    }
    0
}

/// Mixes the bits of a number with the finalizer of splitmix64 (Steele, Lea and Flood 2014).
pub const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Maps a uniformly distributed `u64` to `[0, 1)`.
pub fn unit(number: u64) -> f64 {
    (number >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests;

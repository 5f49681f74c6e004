//! A policy sees a snapshot and a question and names a replica. It holds no lock, reads no clock
//! and draws no luck of its own, so equal inputs give equal choices.
//!
//! The snapshot is one [`Candidate`] for each replica: what its [`Ledger`] believes of it now, for
//! this prompt. The gateway and the laboratory keep the same ledgers and ask the same policies.

mod glance;
pub mod high_water;
pub mod kv_aware;
mod learned;
mod least_requests;
mod ledger;
mod p2c;
mod prefill;
pub mod prefix;
mod prefix_affinity;
mod promise;
mod prompt;
mod question;
mod random;
mod recipients;
mod round_robin;
mod said;
mod session;
mod shortlist;
mod slots;
mod unanswered;

pub use learned::Learned;
pub use ledger::Ledger;
pub use prefill::Prefill;
pub use promise::{Counts, Own, Promise};
pub use prompt::Prompt;
pub use question::Question;
pub use said::{LastSaid, Report};
pub use shortlist::Shortlist;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A replica that could take the request, as it is believed to be now.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Candidate {
    /// Its place in the fleet.
    #[serde(skip)]
    pub place: usize,
    /// Requests that this gateway has at the replica.
    pub in_flight: u32,
    /// Its share of the work, relative to the others'. At least 1.
    pub weight: u32,
    /// Whether it has the LoRA adapter that the request asks for, or none is asked for.
    pub has_adapter: bool,
    /// A number of its own, for choices that are to stay the same.
    #[serde(skip)]
    pub key: u64,
    /// Tokens of the prompt, as this replica would count them.
    pub prompt: f64,
    /// Of those, the ones that are believed to be in its prefix cache.
    pub cached: f64,
    /// Tokens that the answer is expected to have.
    pub output: f64,
    /// Prompt tokens that it computes before this request's.
    pub backlog: f64,
    /// How fast it computes prompts.
    pub prefill: Prefill,
    /// Whether that has been learned from it.
    pub is_tried: bool,
    /// Whether its answers told how many tokens prompts and answers have.
    pub is_told: bool,
    /// Seconds since this gateway sent it a request, or since it is known.
    pub rested: f64,
    /// Requests that wait in its engine.
    pub waiting: f64,
    /// Requests that run there.
    pub running: f64,
    /// What it last said of both itself. Zeros, if it said nothing.
    pub said: LastSaid,
    /// Share of its KV cache that requests hold; more than 1 if they do not fit. `None`: not known.
    pub kv_usage: Option<f64>,
    /// Tokens that its KV cache can hold.
    pub capacity: Option<u64>,
    /// How much of this it said itself, lately: from 0 to 1.
    pub certainty: f64,
    /// Seconds until its engine has a free slot for one more sequence. 0: it has one, or the number of
    /// its slots is not known.
    pub slot_wait: f64,
    /// Seconds for which its oldest request without output has been overdue, or for which all its
    /// streams have been silent. 0: neither.
    pub overdue: f64,
}

/// Lends what the others have taught to candidates that have not answered yet: they are worth a
/// try, and not worth all that comes until they have.
pub fn lend(candidates: &mut [Candidate]) {
    lend_lines(candidates);
    lend_tokens(candidates);
}

/// The line of the fastest.
fn lend_lines(candidates: &mut [Candidate]) {
    let tried = candidates.iter().filter(|candidate| candidate.is_tried);
    let fastest = tried.map(|candidate| candidate.prefill).min_by(|a, b| {
        let seconds = |line: &Prefill| line.seconds(LENT_FOR);
        seconds(a).total_cmp(&seconds(b))
    });
    let Some(line) = fastest else { return };
    for untried in candidates.iter_mut().filter(|candidate| !candidate.is_tried) {
        untried.prefill = line;
    }
}

/// The mean of the tokens: all serve the same model to the same clients.
fn lend_tokens(candidates: &mut [Candidate]) {
    let told = candidates.iter().filter(|candidate| candidate.is_told);
    let sums = told.fold([0.0; 3], |[count, prompt, output], told| {
        [count + 1.0, prompt + told.prompt, output + told.output]
    });
    let [prompt, output] = [sums[1] / sums[0], sums[2] / sums[0]];
    if prompt > 0.0 {
        for untold in candidates.iter_mut().filter(|candidate| !candidate.is_told) {
            untold.cached *= prompt / untold.prompt;
            (untold.prompt, untold.output) = (prompt, output);
        }
    }
}

/// The prompt, in tokens, for which the fastest is looked for.
const LENT_FOR: f64 = 1_000.0;

/// The question: one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ask {
    /// The number of this question, counted up.
    pub sequence: u64,
    /// Randomness for the policies that want some.
    pub seed: u64,
    /// A hash of the session that the request belongs to, if it says so.
    pub session: Option<u64>,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The position of the replica among the candidates.
    pub index: usize,
    /// Why, from a closed set.
    pub reason: &'static str,
}

/// The policies.
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
    /// The least predicted time to first token: queue, prompt, cached prefix and KV pressure.
    #[default]
    KvAware,
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
    /// The fewest requests of this gateway in flight.
    LeastRequests,
    /// The less loaded of two drawn at random.
    P2c,
    /// Where most of the prompt was sent before.
    PrefixAffinity,
    /// Always the same for a session.
    Session,
}

/// A policy with its settings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Policy {
    /// Which.
    pub kind: PolicyKind,
    /// For [`PolicyKind::KvAware`].
    pub kv_aware: kv_aware::Settings,
}

impl Policy {
    /// The name in the configuration, in metrics and in logs.
    pub const fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Chooses among the candidates. `None` if there are none.
    pub fn pick(&self, candidates: &[Candidate], ask: &Ask) -> Option<Choice> {
        if candidates.len() < 2 {
            return candidates.first().map(|_| Choice { index: 0, reason: "only_candidate" });
        }
        Some(match self.kind {
            PolicyKind::KvAware => kv_aware::pick(&self.kv_aware, candidates, ask),
            PolicyKind::RoundRobin => round_robin::pick(candidates, ask),
            PolicyKind::Random => random::pick(candidates, ask),
            PolicyKind::LeastRequests => least_requests::pick(candidates, ask),
            PolicyKind::P2c => p2c::pick(candidates, ask),
            PolicyKind::PrefixAffinity => prefix_affinity::pick(candidates, ask),
            PolicyKind::Session => session::pick(candidates, ask),
        })
    }
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::KvAware,
        Self::RoundRobin,
        Self::Random,
        Self::LeastRequests,
        Self::P2c,
        Self::PrefixAffinity,
        Self::Session,
    ];

    /// The name in the configuration, in metrics and in logs.
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

/// The reason of a choice among ejected replicas: too many are ejected to leave them all out.
pub const PANIC: &str = "panic_mode";

/// Every reason of a choice: a label value is one of these.
pub const REASONS: &[&str] = &[
    "only_candidate",
    "lowest_ttft",
    "cached_prefix",
    "prefix_too_busy",
    "avoids_overdue",
    "session",
    "session_too_busy",
    "turn",
    "random",
    "fewest_requests",
    "fewer_of_two",
    PANIC,
];

/// The position of the lowest cost. Of those that cost more by no more than `slack` it is the one
/// that has rested longest, so that an idle fleet shares the work evenly, and no connection grows
/// cold by bad luck; those that have rested equally long take turns.
fn lowest(
    candidates: &[Candidate],
    costs: &(impl Iterator<Item = f64> + Clone),
    slack: f64,
    turn: u64,
) -> usize {
    let least = costs.clone().fold(f64::INFINITY, f64::min) + slack;
    let ties =
        || candidates.iter().zip(costs.clone()).enumerate().filter(|(_, (_, cost))| *cost <= least);
    let longest = ties().map(|(_, (candidate, _))| candidate.rested).fold(0.0, f64::max);
    let best = || ties().filter(|(_, (candidate, _))| candidate.rested >= longest);
    let wanted = (turn % best().count().max(1) as u64) as usize;
    best().nth(wanted).map_or(0, |(index, _)| index)
}

/// Requests in flight for each unit of weight, with the one that is asked for.
fn load(candidate: &Candidate) -> f64 {
    f64::from(candidate.in_flight + 1) / f64::from(candidate.weight.max(1))
}

/// The same, with a place behind all others for a candidate whose oldest request is overdue.
fn load_if_not_overdue(candidate: &Candidate) -> f64 {
    load(candidate) + if candidate.overdue > 0.0 { OVERDUE_LOAD } else { 0.0 }
}

/// More requests than any backend has.
const OVERDUE_LOAD: f64 = 1e9;

/// The candidate at a place between 0 and the sum of all weights.
fn at_weight(candidates: &[Candidate], place: u64) -> usize {
    let total: u64 = candidates.iter().map(|candidate| u64::from(candidate.weight.max(1))).sum();
    let mut rest = place % total.max(1);
    for (index, candidate) in candidates.iter().enumerate() {
        let weight = u64::from(candidate.weight.max(1));
        if rest < weight {
            return index;
        }
        rest -= weight;
    }
    0
}

/// Spreads the bits of a number: the finalizer of splitmix64 (Steele, Lea and Flood 2014).
pub const fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A number of 64 even bits as a place from 0 to 1, without 1.
pub fn unit(number: u64) -> f64 {
    (number >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests;

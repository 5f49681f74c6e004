//! The routing policies by name, and the reasons that they give.

use super::policies::{
    kv_aware, least_requests, p2c, prefix_affinity, random, round_robin, session,
};
use super::{Candidate, PolicyChoice, RoutingRequest, shares};
use schemars::JsonSchema;
use serde::Deserialize;
use tokenweir_protocol::named_enum;

named_enum! {
    /// A routing policy.
    #[derive(Default, Hash)]
    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum PolicyKind {
        /// The least predicted time to first token, from queue, prompt, cached prefix and KV cache
        /// usage.
        #[default]
        KvAware = "kv_aware",
        /// Each backend in turn, by weight.
        RoundRobin = "round_robin",
        /// A random backend, by weight.
        Random = "random",
        /// The fewest requests of this gateway in flight.
        LeastRequests = "least_requests",
        /// The less loaded of two random backends.
        P2c = "p2c",
        /// The backend that was sent the longest prefix of the prompt before, unless it is overloaded.
        PrefixAffinity = "prefix_affinity",
        /// The same backend for all requests of a session, unless it is overloaded.
        Session = "session",
    }
}

/// A routing policy with its settings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Policy {
    /// The algorithm with which the policy picks a backend.
    pub kind: PolicyKind,
    /// Settings of [`PolicyKind::KvAware`]. They also apply to predictions under other policies.
    pub kv_aware: kv_aware::KvAwareSettings,
}

impl Policy {
    /// Name of the policy in the configuration, in metrics and in logs.
    pub const fn name(&self) -> &'static str {
        self.kind.as_str()
    }

    /// Chooses a candidate. `None`: no candidates.
    pub fn pick(&self, candidates: &[Candidate], request: &RoutingRequest) -> Option<PolicyChoice> {
        if candidates.len() < 2 {
            return candidates.first().map(|_| PolicyChoice {
                index: 0,
                reason: "only_candidate",
            });
        }
        if !self.kind.weighs_load() || shares::are_equal(candidates) {
            return Some(self.pick_among(candidates, request));
        }
        let within = shares::within(candidates);
        let own: Vec<Candidate> = within.iter().map(|index| candidates[*index]).collect();
        if own.len() < 2 {
            return within.first().map(|index| PolicyChoice {
                index: *index,
                reason: "weight",
            });
        }
        let choice = self.pick_among(&own, request);
        Some(PolicyChoice {
            index: within[choice.index],
            ..choice
        })
    }

    /// Chooses one of at least two candidates.
    fn pick_among(&self, candidates: &[Candidate], request: &RoutingRequest) -> PolicyChoice {
        match self.kind {
            PolicyKind::KvAware => kv_aware::pick(&self.kv_aware, candidates, request),
            PolicyKind::RoundRobin => round_robin::pick(candidates, request),
            PolicyKind::Random => random::pick(candidates, request),
            PolicyKind::LeastRequests => least_requests::pick(candidates, request),
            PolicyKind::P2c => p2c::pick(candidates, request),
            PolicyKind::PrefixAffinity => prefix_affinity::pick(candidates, request),
            PolicyKind::Session => session::pick(candidates, request),
        }
    }
}

impl PolicyKind {
    /// Whether the policy compares the load of the candidates. The other policies follow only the weights.
    pub(crate) const fn weighs_load(self) -> bool {
        matches!(
            self,
            Self::KvAware | Self::LeastRequests | Self::P2c | Self::PrefixAffinity
        )
    }
}

/// Reason of a choice in panic mode, in which ejections are ignored because too many backends are ejected.
pub const PANIC: &str = "panic_mode";

/// All reasons of a choice. They are label values of metrics.
pub const REASONS: &[&str] = &[
    "only_candidate",
    "weight",
    "lowest_ttft",
    "lowest_cost",
    "tie",
    "kv_pressure",
    "cached_prefix",
    "prefix_too_busy",
    "session",
    "session_too_busy",
    "turn",
    "random",
    "fewest_requests",
    "fewer_of_two",
    PANIC,
];

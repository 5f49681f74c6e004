//! Routers of an experiment: the policies of the gateway, and reimplementations of other routers
//! for comparison.

use super::reference_routers::{LlmDRouter, RadixTreeRouter};
use super::trace::TraceRequest;
use std::str::FromStr;
use tokenweir_core::routing::{Candidate, LoadReport, Policy, PolicyKind, RoutingRequest};

/// Input of a routing decision.
#[derive(Debug)]
pub struct RoutingInput<'a> {
    /// The request.
    pub job: &'a TraceRequest,
    /// Candidates, with the estimates of the gateway.
    pub candidates: &'a [Candidate],
    /// Last load report of each backend, by position.
    pub reports: &'a [LoadReport],
    /// Sequence number, random seed and session of the decision.
    pub routing_request: RoutingRequest,
}

/// A router with its state.
#[derive(Debug)]
pub enum Router {
    /// A policy of the gateway.
    Shipped(Policy),
    /// The endpoint picker of llm-d with its default scorers.
    LlmD(LlmDRouter),
    /// The cache-aware policy with radix trees of the SGLang and vLLM routers.
    RadixTree(RadixTreeRouter),
}

/// Kind of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouterKind {
    /// A policy of the gateway.
    Shipped(PolicyKind),
    /// `llm_d`
    LlmD,
    /// `radix_tree`
    RadixTree,
}

impl RouterKind {
    /// All kinds.
    pub fn all() -> Vec<Self> {
        let shipped = PolicyKind::ALL.into_iter().map(Self::Shipped);
        shipped.chain([Self::LlmD, Self::RadixTree]).collect()
    }

    /// Name on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shipped(kind) => kind.name(),
            Self::LlmD => "llm_d",
            Self::RadixTree => "radix_tree",
        }
    }

    /// A router without history, for a fleet of `backend_count` backends. `policy`: settings of the
    /// policies of the gateway.
    pub fn router(self, policy: &Policy, backend_count: usize) -> Router {
        match self {
            Self::Shipped(kind) => Router::Shipped(Policy { kind, ..*policy }),
            Self::LlmD => Router::LlmD(LlmDRouter::new(backend_count)),
            Self::RadixTree => Router::RadixTree(RadixTreeRouter::new(backend_count)),
        }
    }
}

impl FromStr for RouterKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = Self::all().into_iter().find(|kind| kind.name() == text);
        let names = || Self::all().iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
        kind.ok_or_else(|| format!("unknown policy `{text}`; the policies are {}", names()))
    }
}

impl Router {
    /// The policy of the gateway, whose candidates may be sampled. `None`: another router, which
    /// needs all backends as candidates.
    pub const fn policy(&self) -> Option<PolicyKind> {
        match self {
            Self::Shipped(policy) => Some(policy.kind),
            Self::LlmD(_) | Self::RadixTree(_) => None,
        }
    }

    /// Chooses a backend for a request. Returns its index among the candidates.
    pub fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        match self {
            Self::Shipped(policy) => {
                policy.pick(view.candidates, &view.routing_request).map_or(0, |choice| choice.index)
            }
            Self::LlmD(picker) => picker.route(view),
            Self::RadixTree(tree) => tree.route(view),
        }
    }
}

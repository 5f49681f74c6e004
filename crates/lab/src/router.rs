//! Who decides in an experiment: a policy as the gateway ships it, or a restatement of another
//! router to compare it with.

use super::peers::{LlmD, RadixTree};
use super::trace::Job;
use std::str::FromStr;
use tokenweir_core::routing::{Ask, Candidate, Policy, PolicyKind, Report};

/// What a router may look at.
#[derive(Debug)]
pub struct View<'a> {
    /// The request.
    pub job: &'a Job,
    /// What the gateway's ledgers believe.
    pub candidates: &'a [Candidate],
    /// What the replicas last said, as they said it.
    pub reports: &'a [Report],
    /// The number and the luck of this question.
    pub ask: Ask,
}

/// One that decides.
#[derive(Debug)]
pub enum Router {
    /// As the gateway does.
    Shipped(Policy),
    /// As llm-d's endpoint picker does with its default scorers.
    LlmD(LlmD),
    /// As the cache-aware routers with a radix tree do.
    RadixTree(RadixTree),
}

/// The name of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouterKind {
    /// A policy of the gateway's.
    Shipped(PolicyKind),
    /// `llm_d`
    LlmD,
    /// `radix_tree`
    RadixTree,
}

impl RouterKind {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let shipped = PolicyKind::ALL.into_iter().map(Self::Shipped);
        shipped.chain([Self::LlmD, Self::RadixTree]).collect()
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shipped(kind) => kind.name(),
            Self::LlmD => "llm_d",
            Self::RadixTree => "radix_tree",
        }
    }

    /// One that has seen nothing, for this many replicas.
    pub fn router(self, policy: &Policy, replicas: usize) -> Router {
        match self {
            Self::Shipped(kind) => Router::Shipped(Policy { kind, ..*policy }),
            Self::LlmD => Router::LlmD(LlmD::new(replicas)),
            Self::RadixTree => Router::RadixTree(RadixTree::new(replicas)),
        }
    }
}

impl FromStr for RouterKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::all().into_iter().find(|kind| kind.name() == text);
        let known = || Self::all().iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| format!("`{text}` is not a policy; there are {}", known()))
    }
}

impl Router {
    /// The policy of the gateway's that it is, if it is one. Others look at all replicas.
    pub const fn policy(&self) -> Option<PolicyKind> {
        match self {
            Self::Shipped(policy) => Some(policy.kind),
            Self::LlmD(_) | Self::RadixTree(_) => None,
        }
    }

    /// The candidate for a request, by its position.
    pub fn route(&mut self, view: &View<'_>) -> usize {
        match self {
            Self::Shipped(policy) => {
                policy.pick(view.candidates, &view.ask).map_or(0, |choice| choice.index)
            }
            Self::LlmD(picker) => picker.route(view),
            Self::RadixTree(tree) => tree.route(view),
        }
    }
}

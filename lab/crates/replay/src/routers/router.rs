//! Routers of an experiment: the policies of the gateway, and reimplementations of other routers
//! for comparison.

use super::dynamo::DynamoRouter;
use super::llm_d::LlmDRouter;
use super::llm_d_predicted::PredictedLatencyRouter;
use super::radix_tree::{RadixTreeRouter, RadixTreeVariant};
use super::routing_input::RoutingInput;
use super::rules::{DualMapRouter, LookaheadRouter, exact_state, five_terms};
use super::session_gate::GateRule;
use super::smetric::SMetricRouter;
use super::token_load::{TokenLoadRouter, TokenLoadRule};
use crate::results::LatencyObjectives;
use std::str::FromStr;
use std::time::Duration;
use tokenweir_protocol::named_enum;
use tokenweir_routing::{Candidate, Policy, PolicyKind, kv_aware};

/// A router that a simulation uses, with its state.
#[derive(Debug)]
pub enum Router {
    /// A policy of the gateway.
    Shipped(Policy),
    /// The endpoint picker of llm-d.
    LlmD(LlmDRouter),
    /// The predicted-latency scheduling of llm-d.
    LlmDPredicted(PredictedLatencyRouter),
    /// The cache-aware policy with radix trees of the SGLang and vLLM routers and of `smg`.
    RadixTree(RadixTreeRouter),
    /// The KV router of NVIDIA Dynamo.
    Dynamo(DynamoRouter),
    /// A router that counts the prompt tokens in flight.
    TokenLoad(TokenLoadRouter),
    /// The policy of the vLLM router that keeps sessions at their backends.
    SMetric(SMetricRouter),
    /// A router that assigns two backends to each prefix (`DualMap`).
    DualMap(DualMapRouter),
    /// Picks the backend with the lowest cost, a formula of five terms without adjustable settings.
    FiveTerms,
    /// The policy of the gateway, but with the true state of the engines.
    Exact(Policy),
    /// Picks the backend for which this request and the next one together have the least predicted TTFT.
    Lookahead(LookaheadRouter),
}

/// A router that the simulation can compare: a policy of the gateway, or a reimplementation of another
/// router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouterKind {
    /// A policy of the gateway.
    Shipped(PolicyKind),
    /// A router that is not a policy of the gateway.
    Reference(ReferenceRouter),
}

named_enum! {
    /// A router that is not a policy of the gateway.
    #[derive(Hash)]
    pub enum ReferenceRouter {
        /// The default scorers of llm-d.
        LlmD = "llm_d",
        /// The default scorers of llm-d and `no-hit-lru`.
        LlmDNoHitLru = "llm_d_no_hit_lru",
        /// The SGLang router.
        RadixTree = "radix_tree",
        /// The vLLM router.
        VllmRouter = "vllm_router",
        /// The cache-aware policy of the gateway that succeeded the SGLang router.
        Smg = "smg",
        /// The KV router of NVIDIA Dynamo, with the true contents of the caches.
        Dynamo = "dynamo",
        /// The KV router of NVIDIA Dynamo, with cache contents estimated from the prompts that it sent.
        DynamoApproximate = "dynamo_approximate",
        /// The scorers that llm-d recommended in 2026.
        LlmDOptimized = "llm_d_optimized",
        /// The predicted-latency scheduling of llm-d.
        LlmDPredicted = "llm_d_predicted",
        /// The product of the uncached prompt tokens of this request and the requests in flight + 1.
        LMetric = "lmetric",
        /// The policy `smetric` of the vLLM router.
        SMetric = "smetric",
        /// The plugin `thunder-agent` of llm-d, which holds turns of sessions, with its default scorers.
        ThunderAgent = "thunder_agent",
        /// Dynamo's session-aware queue admission, with its KV router.
        DynamoSessions = "dynamo_sessions",
        /// Weighs the prompt tokens in flight against the cached share of the prompt.
        BacklogAndShare = "backlog_and_share",
        /// The least number of pending prompt tokens, including those of this prompt.
        Lpwl = "lpwl",
        /// One of the two backends that are assigned to each prefix.
        DualMap = "dual_map",
        /// A cost formula of five terms without adjustable settings.
        FiveTerms = "five_terms",
        /// The formula of `kv_aware` on the true state of the engines.
        ExactState = "exact_state",
        /// `kv_aware` in a gateway without admission control.
        WithoutAdmission = "without_admission",
        /// `kv_aware` with admission control, but without admission by live sessions.
        WithoutSessions = "without_sessions",
        /// The least predicted TTFT of this request and the next one together.
        Lookahead = "lookahead",
    }
}

impl RouterKind {
    /// Returns all routers: the policies of the gateway and the others.
    pub fn all() -> Vec<Self> {
        let references = ReferenceRouter::ALL.into_iter().map(Self::Reference);
        PolicyKind::ALL
            .into_iter()
            .map(Self::Shipped)
            .chain(references)
            .collect()
    }

    /// Returns the name of the router on the command line and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shipped(kind) => kind.as_str(),
            Self::Reference(router) => router.as_str(),
        }
    }

    /// Time between two scrapes of a backend by this router. If `interval` is the default of the gateway,
    /// llm-d uses its own default instead: it refreshes its metrics every 50 ms.
    pub fn scrape_interval(self, interval: Duration) -> Duration {
        let is_default = interval == DEFAULT_SCRAPE_INTERVAL;
        match self {
            Self::Reference(
                ReferenceRouter::LlmD
                | ReferenceRouter::LlmDNoHitLru
                | ReferenceRouter::LlmDOptimized
                | ReferenceRouter::LlmDPredicted
                | ReferenceRouter::ThunderAgent,
            ) if is_default => LLM_D_SCRAPE_INTERVAL,
            _ => interval,
        }
    }

    /// Whether requests wait in the gateway while all backends are full. The products that the references
    /// stand for send each request at once by default.
    pub(crate) const fn has_admission(self) -> bool {
        matches!(
            self,
            Self::Shipped(_)
                | Self::Reference(ReferenceRouter::ExactState | ReferenceRouter::WithoutSessions)
        )
    }

    /// Whether new sessions wait in the gateway until they fit, if its configuration says so.
    pub(crate) const fn has_sessions(self) -> bool {
        self.has_admission() && !matches!(self, Self::Reference(ReferenceRouter::WithoutSessions))
    }

    /// The rule by which the gateway holds turns of sessions. `None`: it holds none.
    pub(crate) const fn gate_rule(self) -> Option<GateRule> {
        match self {
            Self::Reference(ReferenceRouter::ThunderAgent) => Some(GateRule::ThunderAgent),
            Self::Reference(ReferenceRouter::DynamoSessions) => Some(GateRule::Dynamo),
            _ => None,
        }
    }

    /// A new router for a fleet of `backend_count` backends. `policy`: settings of the policies of the
    /// gateway. `objectives`: infinity for no objective.
    pub fn router(
        self,
        policy: &Policy,
        objectives: LatencyObjectives,
        backend_count: usize,
    ) -> Router {
        let radix_tree = |variant| Router::RadixTree(RadixTreeRouter::new(backend_count, variant));
        let token_load = |rule| Router::TokenLoad(TokenLoadRouter::new(backend_count, rule));
        let reference = match self {
            Self::Shipped(kind) => return Router::Shipped(Policy { kind, ..*policy }),
            Self::Reference(reference) => reference,
        };
        match reference {
            ReferenceRouter::LlmD | ReferenceRouter::ThunderAgent => {
                Router::LlmD(LlmDRouter::new(backend_count, false))
            }
            ReferenceRouter::LlmDNoHitLru => Router::LlmD(LlmDRouter::new(backend_count, true)),
            ReferenceRouter::RadixTree => radix_tree(RadixTreeVariant::SglangRouter),
            ReferenceRouter::VllmRouter => radix_tree(RadixTreeVariant::VllmRouter),
            ReferenceRouter::Smg => radix_tree(RadixTreeVariant::Smg),
            ReferenceRouter::Dynamo | ReferenceRouter::DynamoSessions => {
                Router::Dynamo(DynamoRouter::new(backend_count, true))
            }
            ReferenceRouter::DynamoApproximate => {
                Router::Dynamo(DynamoRouter::new(backend_count, false))
            }
            ReferenceRouter::LlmDOptimized => token_load(TokenLoadRule::LlmDOptimized),
            ReferenceRouter::LlmDPredicted => {
                Router::LlmDPredicted(PredictedLatencyRouter::new(backend_count, objectives))
            }
            ReferenceRouter::LMetric => token_load(TokenLoadRule::LMetric),
            ReferenceRouter::SMetric => {
                Router::SMetric(SMetricRouter::new(backend_count, objectives.ttft))
            }
            ReferenceRouter::BacklogAndShare => token_load(TokenLoadRule::BacklogAndShare),
            ReferenceRouter::Lpwl => token_load(TokenLoadRule::Lpwl),
            ReferenceRouter::DualMap => Router::DualMap(DualMapRouter::new(objectives.ttft)),
            ReferenceRouter::FiveTerms => Router::FiveTerms,
            ReferenceRouter::ExactState => Router::Exact(Policy {
                kind: PolicyKind::KvAware,
                ..*policy
            }),
            ReferenceRouter::WithoutAdmission | ReferenceRouter::WithoutSessions => {
                Router::Shipped(Policy {
                    kind: PolicyKind::KvAware,
                    ..*policy
                })
            }
            ReferenceRouter::Lookahead => Router::Lookahead(LookaheadRouter::default()),
        }
    }
}

/// Default scrape interval of the gateway.
pub const DEFAULT_SCRAPE_INTERVAL: Duration = Duration::from_millis(100);
/// Default refresh interval of the metrics of llm-d's endpoint picker.
const LLM_D_SCRAPE_INTERVAL: Duration = Duration::from_millis(50);

impl FromStr for RouterKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = Self::all().into_iter().find(|kind| kind.name() == text);
        let names = || {
            Self::all()
                .iter()
                .map(|kind| kind.name())
                .collect::<Vec<_>>()
                .join(", ")
        };
        kind.ok_or_else(|| format!("unknown policy `{text}`; the policies are {}", names()))
    }
}

impl Router {
    /// The policy of the gateway, for which a sample of the backends is enough as candidates. `None`: another
    /// router, which needs all backends as candidates.
    pub const fn policy(&self) -> Option<PolicyKind> {
        match self {
            Self::Shipped(policy) => Some(policy.kind),
            _ => None,
        }
    }

    /// The predicted time to first output of a candidate in seconds. NaN: no prediction.
    pub fn predicted_ttft(&self, candidate: &Candidate) -> f64 {
        match self {
            Self::Shipped(policy) => kv_aware::ttft(&policy.kv_aware, candidate, false),
            _ => f64::NAN,
        }
    }

    /// Chooses a backend for a request. Returns its index among the candidates.
    pub fn route(&mut self, view: &RoutingInput<'_>) -> usize {
        match self {
            Self::Shipped(policy) => policy
                .pick(view.candidates, &view.routing_request)
                .map_or(0, |choice| choice.index),
            Self::LlmD(picker) => picker.route(view),
            Self::LlmDPredicted(picker) => picker.route(view),
            Self::RadixTree(tree) => tree.route(view),
            Self::Dynamo(router) => router.route(view),
            Self::TokenLoad(router) => router.route(view),
            Self::SMetric(router) => router.route(view),
            Self::DualMap(router) => router.route(view),
            Self::FiveTerms => five_terms(view),
            Self::Exact(policy) => exact_state(policy, view),
            Self::Lookahead(router) => router.route(view),
        }
    }

    /// Records the first output of a request. `ttft`: the time to first token in seconds.
    pub fn on_first_output(&mut self, number: usize, ttft: f64) {
        match self {
            Self::LlmDPredicted(picker) => picker.on_first_output(number, ttft),
            Self::Dynamo(router) => router.on_first_output(number),
            Self::TokenLoad(router) => router.on_first_output(number),
            Self::SMetric(router) => router.on_first_output(number, ttft),
            _ => {}
        }
    }

    /// Records the end of a request. `tpot`: its mean time per output token in seconds. `None`: the
    /// response has fewer than two tokens.
    pub fn on_end(&mut self, number: usize, tpot: Option<f64>) {
        match self {
            Self::LlmDPredicted(picker) => picker.on_end(number, tpot),
            Self::Dynamo(router) => router.on_end(number),
            Self::TokenLoad(router) => router.on_first_output(number),
            Self::SMetric(router) => router.on_end(number),
            _ => {}
        }
    }
}

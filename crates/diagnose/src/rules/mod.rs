//! The table of the rules. Each row has the meaning of the condition, the required signals, the rules that
//! explain the condition, the remedy and the disproof. A function beside each row evaluates the rule.
//!
//! Rules about load match only if clients are harmed. For example, a full KV cache alone is no fault,
//! because a full cache is well used.

mod rule;

mod avoided;
mod cache;
mod front_end;
mod gpus;
mod leak;
mod prefill;
mod request_flow;
mod responses;
mod shared;
mod slow_engine;
mod texts;

use crate::history::StepSignal;
use crate::verdict::{VerdictDescription, VerdictScope, VerdictSeverity};

pub use cache::safe_max_num_seqs;
pub use rule::DiagnosisRule;
pub(crate) use shared::name_other_gateways;

/// The load without which the condition of a rule cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadDependence {
    /// The condition can hold without load.
    None,
    /// The condition needs load at the backend itself.
    Backend,
    /// The condition needs requests at the backend. Because of the condition, routing may send the backend
    /// none. While other backends get requests, a lack of requests at this backend therefore does not show
    /// that the condition has ended.
    Requests,
}

/// All rules. A rule comes after the rules that explain it.
pub const RULES: [DiagnosisRule; 15] = [
    request_flow::BLIND,
    shared::SHARED_BACKEND,
    cache::THRASHING,
    cache::BACKLOG,
    prefill::DECODE_STARVATION,
    slow_engine::SLOW_ENGINE,
    prefill::PREFILL_STARVATION,
    request_flow::STALLS,
    request_flow::ABORT_SPIKE,
    front_end::FRONT_END_GAP,
    responses::UNUSUAL_RESPONSES,
    leak::MEMORY_LEAK,
    gpus::THROTTLED,
    cache::PREFIX_MISSES,
    avoided::BACKEND_AVOIDED,
];

/// The signals of requests that show whether a condition has ended. `sum` ÷ `count`, both summed over steps
/// of the history, is the value of the condition. The value is used if `count` is at least `min_count`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestEvidence {
    pub(crate) sum: StepSignal,
    pub(crate) count: StepSignal,
    pub(crate) min_count: f64,
}

/// The signals of harm to clients. A warning about requests becomes critical if the harmed requests at the
/// backend are a critical share of all requests.
pub(crate) struct HarmSignals {
    pub(crate) harmed: StepSignal,
    pub(crate) total: StepSignal,
}

impl DiagnosisRule {
    /// The load without which the condition cannot hold.
    pub(crate) fn load_dependence(&self) -> LoadDependence {
        match self.name {
            // Unreadable metrics and leaked blocks last without any load.
            name if name == request_flow::BLIND.name || name == leak::MEMORY_LEAK.name => {
                LoadDependence::None
            }
            _ if self.request_evidence().is_some() => LoadDependence::Requests,
            _ => LoadDependence::Backend,
        }
    }

    /// The signals of requests that show whether the condition has ended. `None`: no requests are needed to
    /// show this, because the metrics of the engine show it, or because the condition cannot hold without
    /// load.
    pub(crate) fn request_evidence(&self) -> Option<RequestEvidence> {
        let (sum, count, min_count) = match self.name {
            name if name == slow_engine::SLOW_ENGINE.name => {
                (StepSignal::InterTokenSeconds, StepSignal::Gaps, 30.0)
            }
            name if name == request_flow::STALLS.name => {
                (StepSignal::Stalls, StepSignal::FirstOutputs, 5.0)
            }
            name if name == responses::UNUSUAL_RESPONSES.name => {
                (StepSignal::EmptyResponses, StepSignal::Responses, 5.0)
            }
            name if name == front_end::FRONT_END_GAP.name
                || name == avoided::BACKEND_AVOIDED.name =>
            {
                (
                    StepSignal::FirstOutputSeconds,
                    StepSignal::FirstOutputs,
                    5.0,
                )
            }
            _ => return None,
        };
        Some(RequestEvidence {
            sum,
            count,
            min_count,
        })
    }

    /// The signals of harm to clients.
    pub(crate) fn harm(&self) -> HarmSignals {
        if self.name == responses::UNUSUAL_RESPONSES.name {
            HarmSignals {
                harmed: StepSignal::UselessResponses,
                total: StepSignal::Responses,
            }
        } else {
            HarmSignals {
                harmed: StepSignal::SlowFirstOutputs,
                total: StepSignal::FirstOutputs,
            }
        }
    }

    /// The texts of the rule. A warning about requests becomes critical if many first outputs are late.
    pub(crate) fn description(&self) -> VerdictDescription {
        VerdictDescription {
            name: self.name,
            scope: VerdictScope::Backend,
            is_about_state: false,
            severity: match self.severity {
                VerdictSeverity::Warning if self.is_about_requests() => "warning or critical",
                severity => severity.as_str(),
            },
            meaning: self.meaning,
            evidence: self.evidence,
            excluded: self.excluded,
            remedy: self.remedy,
            disproof: self.disproof,
            pages: self.pages,
        }
    }

    /// Whether the condition is about the requests at the backend.
    pub(crate) fn is_about_requests(&self) -> bool {
        matches!(
            self.load_dependence(),
            LoadDependence::Backend | LoadDependence::Requests
        )
    }

    /// Whether the condition can be a lasting change that clients want. Then the values of a long-lasting
    /// verdict become usual, and the verdict ends.
    pub(crate) fn becomes_usual(&self) -> bool {
        self.name == responses::UNUSUAL_RESPONSES.name || self.name == slow_engine::SLOW_ENGINE.name
    }

    /// Whether this is the rule for backends whose metrics cannot be read.
    pub(crate) fn is_metrics_unreadable(&self) -> bool {
        self.name == request_flow::BLIND.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_rule_follows_those_that_explain_it() {
        let mut names = BTreeSet::new();
        for rule in &RULES {
            for other in rule.explained_by {
                assert!(
                    names.contains(other),
                    "{} is explained by {other}",
                    rule.name
                );
            }
            names.insert(rule.name);
        }
    }
}

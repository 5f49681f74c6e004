//! The table of the rules about engines. Each row has the meaning of the condition, the required signals, the
//! remedy and the disproof. A function next to each row evaluates the rule.
//!
//! Rules about load match only if clients are harmed. For example, a full KV cache alone is no fault, because a
//! full cache is well used.

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

use crate::rule::prelude::*;

pub use cache::safe_max_num_seqs;
pub(crate) use shared::name_other_gateways;

/// The rules about engines. A rule comes after the rules whose conditions can cause its own.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Effect;

    #[test]
    fn each_rule_follows_those_that_explain_it() {
        for (index, cause) in RULES.iter().enumerate() {
            for effect in Effect::caused_by(cause.name) {
                let is_it = |rule: &DiagnosisRule| Effect::of(rule.name) == *effect;
                let is_later = RULES[index + 1..].iter().any(is_it);
                assert!(is_later, "{} explains {effect:?}", cause.name);
            }
        }
    }

    #[test]
    fn only_blind_needs_no_signals() {
        let without = RULES.iter().filter(|rule| rule.needs.is_empty());
        let names: Vec<&str> = without.map(|rule| rule.name).collect();
        assert_eq!(names, ["blind"]);
    }
}

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

use crate::fleet::FLEET_RULES;
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

/// All rules: first those about the fleet and the gateway, and then those about engines.
pub fn verdict_descriptions() -> impl Iterator<Item = &'static DiagnosisRule> {
    FLEET_RULES.into_iter().chain(&RULES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Effect;
    use std::collections::BTreeSet;

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
    fn names_are_unique_and_texts_are_present() {
        let mut names = BTreeSet::new();
        for verdict in verdict_descriptions() {
            assert!(
                names.insert(verdict.name),
                "{} is listed twice",
                verdict.name
            );
            for text in [
                verdict.meaning,
                verdict.evidence,
                verdict.remedy,
                verdict.disproof,
            ] {
                assert!(
                    text.ends_with('.') && text.len() > 20,
                    "{}: {text}",
                    verdict.name
                );
            }
            assert!(!verdict.excluded.ends_with('.'), "{}", verdict.name);
        }
    }
}

//! The state of the gateway in one word, with its reasons. The live page, `tokenweir top` and `/status` show
//! this state, so they always agree.

use super::harm::{Harm, HarmLevel};
use serde::Deserialize;
use tokenweir_diagnose::{Change, Verdict, VerdictScope, VerdictSeverity};
use tokenweir_protocol::named_enum;

named_enum! {
    /// The state of the gateway in one word.
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum GatewayState {
        /// Every backend that should get requests gets them, and no client is harmed.
        Ready = "ready",
        /// Requests are served, but much more slowly than usual.
        Changed = "changed",
        /// Requests are served, but a backend is unavailable, a verdict is active, a few clients are harmed, or
        /// an operator must correct something in the gateway.
        Degraded = "degraded",
        /// Many requests are slow.
        Slow = "slow",
        /// Many requests are refused.
        Refusing = "refusing",
        /// Many requests fail.
        Failing = "failing",
        /// No backend is available: every request is refused.
        #[default]
        Down = "down",
        /// The gateway shuts down and completes its open requests.
        ShuttingDown = "shutting_down",
    }
}

/// The facts from which the state of the gateway is determined.
#[derive(Debug, Clone, Default)]
pub struct GatewayFacts<'a> {
    /// Whether the gateway shuts down.
    pub is_draining: bool,
    /// Why no backend is available. `None`: a backend is available.
    pub unready_reason: Option<&'a str>,
    /// Whether panic mode is active.
    pub is_panic: bool,
    /// The state of each backend, as in `/status`.
    pub backend_states: Vec<&'a str>,
    /// The harm to clients in the last minute.
    pub harm: Harm,
    /// The verdicts of the diagnosis, the most severe first.
    pub verdicts: &'a [Verdict],
    /// The changes since the last hour that make requests slower, the strongest first. Empty: requests are not
    /// slower than usual.
    pub harmful_changes: &'a [Change],
}

/// The states of a backend that make the gateway degraded, each with its word in the reason. An operator
/// excluded a sleeping backend or a backend of weight 0 on purpose, so these states are missing.
const UNAVAILABLE_STATES: [(&str, &str); 4] = [
    ("down", "down"),
    ("ejected", "ejected"),
    ("drained", "drained"),
    ("unknown", "not checked"),
];

impl GatewayState {
    /// The label of the state on the live page and in `tokenweir top`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::ShuttingDown => "shutting down",
            state => state.as_str(),
        }
    }

    /// Whether the gateway serves its clients: few or none of them are harmed.
    pub const fn serves_clients(self) -> bool {
        matches!(self, Self::Ready | Self::Changed | Self::Degraded)
    }

    /// Determines the state of the gateway from these values, and the reasons of a state other than `Ready`. A
    /// verdict that asks for an action is a reason, unless it is about refusals or states of backends, which
    /// are reasons themselves. The state `Down` has one reason, and `ShuttingDown` has none.
    pub fn from_facts(facts: &GatewayFacts<'_>) -> (Self, Vec<String>) {
        if facts.is_draining {
            return (Self::ShuttingDown, Vec::new());
        }
        if let Some(states) = facts.unready_reason {
            return (
                Self::Down,
                vec![format!("no backend is available ({states})")],
            );
        }
        let mut reasons = facts.harm.reasons.clone();
        let total = facts
            .backend_states
            .iter()
            .filter(|state| **state != "leaving")
            .count();
        for (state, word) in UNAVAILABLE_STATES {
            let count = facts
                .backend_states
                .iter()
                .filter(|other| **other == state)
                .count();
            if count > 0 {
                reasons.push(format!("{count} of {total} backends {word}"));
            }
        }
        if facts.is_panic {
            reasons.push("panic mode: ejected backends get requests".to_owned());
        }
        add_verdicts(facts.verdicts, &mut reasons);
        let has_reason = !reasons.is_empty();
        let changes = facts.harmful_changes.iter();
        reasons.extend(changes.map(|change| change.words.clone()));
        let harm = &facts.harm;
        let is_critical = |name: &str| {
            let mut critical = facts
                .verdicts
                .iter()
                .filter(|verdict| verdict.severity == VerdictSeverity::Critical);
            critical.any(|verdict| verdict.verdict == name)
        };
        let state = if harm.is_failing() || is_critical("model_gone") {
            Self::Failing
        } else if harm.is_refusing() {
            Self::Refusing
        } else if harm.slow_level == HarmLevel::Critical || is_critical("slow_engine") {
            Self::Slow
        } else if has_reason {
            Self::Degraded
        } else if reasons.is_empty() {
            Self::Ready
        } else {
            Self::Changed
        };
        (state, reasons)
    }
}

/// Adds a reason for each verdict that asks for an action.
fn add_verdicts(verdicts: &[Verdict], reasons: &mut Vec<String>) {
    let mut actionable = verdicts
        .iter()
        .filter(|verdict| verdict.severity > VerdictSeverity::Info);
    // Verdicts about refused requests and about the state of a backend or of all backends are skipped, because
    // refusals and states already have reasons of their own.
    let further = actionable
        .clone()
        .filter(|verdict| verdict.scope == VerdictScope::Gateway || !verdict.is_about_state());
    let (at_backends, others): (Vec<&Verdict>, Vec<&Verdict>) =
        further.partition(|verdict| verdict.scope == VerdictScope::Backend);
    let count = |severity: VerdictSeverity| {
        at_backends
            .iter()
            .filter(|verdict| verdict.severity == severity)
            .count()
    };
    reasons.extend(counted(
        count(VerdictSeverity::Critical),
        "critical verdict",
    ));
    reasons.extend(counted(count(VerdictSeverity::Warning), "warning"));
    reasons.extend(others.into_iter().map(name));
    // A verdict about the state of a backend ends shortly after the state itself. Until then, the verdict is
    // the reason why the gateway is degraded.
    if reasons.is_empty() {
        reasons.extend(actionable.next().map(name));
    }
}

/// A number of verdicts as text. `None`: `count` is 0.
fn counted(count: usize, word: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {word}")),
        count => Some(format!("{count} {word}s")),
    }
}

fn name(verdict: &Verdict) -> String {
    verdict.verdict.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LastMinute, LateStreams};

    fn state(facts: &GatewayFacts<'_>) -> (GatewayState, String) {
        let (state, reasons) = GatewayState::from_facts(facts);
        (state, reasons.join("; "))
    }

    #[test]
    fn the_state_names_the_worst_kind_of_harm() {
        let of = |failed, refused, slow| {
            let slow = [("engine_queue".to_owned(), slow)].into();
            let minute = LastMinute {
                requests: 100,
                failed,
                refused,
                slow,
                ..LastMinute::default()
            };
            let harm = Harm::of(&minute, LateStreams::default());
            state(&GatewayFacts {
                backend_states: vec!["available"; 3],
                harm,
                ..Default::default()
            })
        };
        assert_eq!(of(0, 0, 0), (GatewayState::Ready, String::new()));
        assert_eq!(
            of(0, 1, 0),
            (
                GatewayState::Degraded,
                "1 % of requests are refused".to_owned()
            )
        );
        assert_eq!(
            of(3, 0, 0),
            (GatewayState::Degraded, "3 % of requests fail".to_owned())
        );
        let slow = "80 % of requests are slow (most: engine queue)".to_owned();
        assert_eq!(of(0, 0, 80), (GatewayState::Slow, slow));
        let both = "94 % of requests are refused; 9 % of requests are slow (most: engine queue)";
        assert_eq!(of(0, 94, 9), (GatewayState::Refusing, both.to_owned()));
        assert_eq!(of(12, 94, 9).0, GatewayState::Failing);
        let states = [
            GatewayState::Failing,
            GatewayState::Slow,
            GatewayState::Refusing,
        ];
        assert!(!states.iter().any(|state| state.serves_clients()));
        assert!(GatewayState::Degraded.serves_clients());
    }

    #[test]
    fn a_harmful_change_alone_is_a_state() {
        let changes = [Change {
            words: "all backends: time between tokens 40 ms, usually 10 ms".into(),
            ..Change::default()
        }];
        let facts = GatewayFacts {
            backend_states: vec!["available"],
            harmful_changes: &changes,
            ..GatewayFacts::default()
        };
        let words = changes[0].words.clone();
        assert_eq!(state(&facts), (GatewayState::Changed, words.clone()));
        let facts = GatewayFacts {
            backend_states: vec!["available", "drained"],
            ..facts
        };
        let both = format!("1 of 2 backends drained; {words}");
        assert_eq!(state(&facts), (GatewayState::Degraded, both));
    }

    #[test]
    fn unavailable_backends_panic_and_verdicts_degrade_the_gateway() {
        let verdict = |name: &'static str, scope, severity| Verdict {
            verdict: name.into(),
            scope,
            severity,
            ..Verdict::default()
        };
        let verdicts = [
            verdict(
                "kv_thrashing",
                VerdictScope::Backend,
                VerdictSeverity::Critical,
            ),
            verdict(
                "kv_backlog",
                VerdictScope::Backend,
                VerdictSeverity::Critical,
            ),
            verdict(
                "front_end_gap",
                VerdictScope::Backend,
                VerdictSeverity::Warning,
            ),
            verdict(
                "reload_failed",
                VerdictScope::Gateway,
                VerdictSeverity::Warning,
            ),
            verdict("harmless", VerdictScope::Gateway, VerdictSeverity::Info),
        ];
        let facts = GatewayFacts {
            backend_states: vec![
                "available",
                "drained",
                "drained",
                "asleep",
                "down",
                "leaving",
            ],
            is_panic: true,
            verdicts: &verdicts,
            ..GatewayFacts::default()
        };
        let reasons = "1 of 5 backends down; 2 of 5 backends drained; panic mode: ejected backends \
                       get requests; 2 critical verdicts; 1 warning; reload failed";
        assert_eq!(state(&facts), (GatewayState::Degraded, reasons.to_owned()));
        let on_purpose = GatewayFacts {
            backend_states: vec!["available", "asleep", "zero_weight", "leaving"],
            ..GatewayFacts::default()
        };
        assert_eq!(state(&on_purpose).0, GatewayState::Ready);
        let down = [verdict(
            "backend_down",
            VerdictScope::Backend,
            VerdictSeverity::Critical,
        )];
        let is_up_again = GatewayFacts {
            verdicts: &down,
            ..on_purpose
        };
        assert_eq!(
            state(&is_up_again),
            (GatewayState::Degraded, "backend down".to_owned())
        );
    }

    #[test]
    fn without_available_backends_the_state_is_down() {
        let facts = GatewayFacts {
            unready_reason: Some("2 backends: 2 asleep"),
            harm: Harm::of(
                &LastMinute {
                    requests: 9,
                    refused: 9,
                    ..LastMinute::default()
                },
                LateStreams::default(),
            ),
            ..GatewayFacts::default()
        };
        let reason = "no backend is available (2 backends: 2 asleep)".to_owned();
        assert_eq!(state(&facts), (GatewayState::Down, reason));
        let facts = GatewayFacts {
            is_draining: true,
            ..facts
        };
        assert_eq!(state(&facts), (GatewayState::ShuttingDown, String::new()));
    }
}

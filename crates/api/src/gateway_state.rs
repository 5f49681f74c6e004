//! The state of the gateway in one word, with its reasons. The live page, `tokenweir top` and
//! `/status` show this state, so they cannot disagree.

use serde::{Deserialize, Serialize};

/// The state of the gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatewayState {
    /// Every backend that should get requests gets them, and no request is refused.
    Ready,
    /// Requests are served, but backends are unavailable, a verdict is critical, a few requests are
    /// refused, or an operator must correct something in the gateway.
    Degraded,
    /// Many requests are refused.
    Refusing,
    /// No backend is available: every request is refused.
    #[default]
    Down,
    /// The gateway shuts down and completes its open requests.
    ShuttingDown,
}

/// The values from which the state of the gateway follows.
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
    /// Number of requests that ended in the last seconds.
    pub requests: u64,
    /// Number of these requests that were refused.
    pub refused: u64,
    /// Number of critical verdicts.
    pub critical_verdicts: usize,
    /// The conditions of the gateway itself that an operator must correct, such as `reload failed`.
    pub notices: Vec<String>,
}

/// Share of refused requests above which the gateway is refusing.
pub const REFUSING_SHARE: f64 = 0.05;

/// The states of a backend that make the gateway degraded, with the words of the reason. A backend
/// that sleeps or has weight 0 was excluded on purpose, for as long as it takes.
const UNAVAILABLE_STATES: [(&str, &str); 4] =
    [("down", "down"), ("ejected", "ejected"), ("drained", "drained"), ("unknown", "not checked")];

impl GatewayState {
    /// The label of the state on the live page and in `tokenweir top`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Refusing => "refusing",
            Self::Down => "down",
            Self::ShuttingDown => "shutting down",
        }
    }

    /// The state that follows from these values, and the reasons why it is not `Ready`.
    pub fn from_facts(facts: &GatewayFacts<'_>) -> (Self, Vec<String>) {
        if facts.is_draining {
            return (Self::ShuttingDown, Vec::new());
        }
        if let Some(states) = facts.unready_reason {
            return (Self::Down, vec![format!("no backend is available ({states})")]);
        }
        let mut reasons = Vec::new();
        let refused_share = facts.refused as f64 / facts.requests.max(1) as f64;
        if facts.refused > 0 {
            reasons.push(format!("{:.0} % of requests are refused", percent(refused_share)));
        }
        let total = facts.backend_states.iter().filter(|state| **state != "leaving").count();
        for (state, word) in UNAVAILABLE_STATES {
            let count = facts.backend_states.iter().filter(|other| **other == state).count();
            if count > 0 {
                reasons.push(format!("{count} of {total} backends {word}"));
            }
        }
        if facts.is_panic {
            reasons.push("panic mode: ejected backends get requests".to_owned());
        }
        match facts.critical_verdicts {
            0 => {}
            1 => reasons.push("1 critical verdict".to_owned()),
            count => reasons.push(format!("{count} critical verdicts")),
        }
        reasons.extend(facts.notices.iter().cloned());
        let state = if reasons.is_empty() {
            Self::Ready
        } else if refused_share > REFUSING_SHARE {
            Self::Refusing
        } else {
            Self::Degraded
        };
        (state, reasons)
    }
}

/// A share in percent, of which a share above zero is at least 1.
fn percent(share: f64) -> f64 {
    if share > 0.0 { (100.0 * share).max(1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(facts: &GatewayFacts<'_>) -> (GatewayState, String) {
        let (state, reasons) = GatewayState::from_facts(facts);
        (state, reasons.join("; "))
    }

    #[test]
    fn a_gateway_that_refuses_requests_is_never_ready() {
        let facts = |requests, refused| GatewayFacts {
            backend_states: vec!["available"; 3],
            requests,
            refused,
            ..GatewayFacts::default()
        };
        assert_eq!(state(&facts(100, 0)), (GatewayState::Ready, String::new()));
        let one_in_a_thousand = "1 % of requests are refused".to_owned();
        assert_eq!(state(&facts(1_000, 1)), (GatewayState::Degraded, one_in_a_thousand));
        let most = "94 % of requests are refused".to_owned();
        assert_eq!(state(&facts(100, 94)), (GatewayState::Refusing, most));
    }

    #[test]
    fn an_unavailable_backend_panic_mode_and_a_critical_verdict_degrade_the_gateway() {
        let facts = GatewayFacts {
            backend_states: vec!["available", "drained", "drained", "asleep", "down", "leaving"],
            is_panic: true,
            critical_verdicts: 2,
            notices: vec!["reload failed".to_owned()],
            ..GatewayFacts::default()
        };
        let reasons = "1 of 5 backends down; 2 of 5 backends drained; panic mode: ejected backends \
                       get requests; 2 critical verdicts; reload failed";
        assert_eq!(state(&facts), (GatewayState::Degraded, reasons.to_owned()));
        let on_purpose = GatewayFacts {
            backend_states: vec!["available", "asleep", "zero_weight", "leaving"],
            ..GatewayFacts::default()
        };
        assert_eq!(state(&on_purpose).0, GatewayState::Ready);
    }

    #[test]
    fn a_gateway_without_available_backends_is_down_until_it_shuts_down() {
        let facts = GatewayFacts {
            unready_reason: Some("2 backends: 2 asleep"),
            requests: 9,
            refused: 9,
            ..GatewayFacts::default()
        };
        let reason = "no backend is available (2 backends: 2 asleep)".to_owned();
        assert_eq!(state(&facts), (GatewayState::Down, reason));
        let facts = GatewayFacts { is_draining: true, ..facts };
        assert_eq!(state(&facts), (GatewayState::ShuttingDown, String::new()));
    }
}

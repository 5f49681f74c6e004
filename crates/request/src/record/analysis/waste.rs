//! Tokens that engines computed but no client received.

use crate::record::{Attempt, Outcome, RequestRecord, UsageSource};
use tokenweir_routing::resilience::FailureKind;

/// Tokens of one request that engines computed in vain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WastedTokens {
    /// Output tokens of a response that the client did not receive completely.
    pub output: u64,
    /// Prompt tokens of a response that the client did not receive completely.
    pub input: u64,
    /// Tokens that an engine computed again: the whole prompt of each further attempt that reached an engine,
    /// and tokens that options, such as continuation, let other backends compute.
    pub recomputed: u64,
}

impl RequestRecord {
    /// The tokens that engines computed in vain. A count that the engine did not report is 0, except output
    /// tokens, which may be an estimate.
    pub fn wasted_tokens(&self) -> WastedTokens {
        let is_counted = self.observed.usage_source != UsageSource::Missing;
        let input = if is_counted {
            self.observed.usage.input.unwrap_or(0)
        } else {
            0
        };
        let is_wasted = self.outcome != Outcome::Ok;
        let output = self.output_tokens().unwrap_or(0);
        let earlier = self
            .attempts
            .split_last()
            .map_or(&[][..], |(_, earlier)| earlier);
        let repeated = earlier
            .iter()
            .filter(|attempt| attempt.may_have_used_engine())
            .count();
        let prompts = input.saturating_mul(repeated as u64);
        let of_options: u64 = self
            .notes
            .iter()
            .map(|note| note.recomputed_tokens(input))
            .sum();
        WastedTokens {
            output: if is_wasted { output } else { 0 },
            input: if is_wasted { input } else { 0 },
            recomputed: prompts + of_options,
        }
    }
}

impl Attempt {
    /// Whether the failed attempt may have reached the engine, which then computed the prompt.
    fn may_have_used_engine(&self) -> bool {
        self.failure_kind()
            .is_some_and(FailureKind::may_have_used_engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fixtures::streamed;

    #[test]
    fn tokens_of_disconnected_clients_are_wasted() {
        assert_eq!(
            streamed().wasted_tokens(),
            WastedTokens::default(),
            "a complete response"
        );
        let left = RequestRecord {
            outcome: Outcome::Cancelled,
            ..streamed()
        };
        let expected = WastedTokens {
            output: 16,
            input: 12,
            recomputed: 0,
        };
        assert_eq!(left.wasted_tokens(), expected);
    }

    #[test]
    fn failed_attempts_recompute_the_prompt() {
        let mut record = streamed();
        for failure in ["connection_reset", "connect_error", "busy", "inband_error"] {
            let failed = Attempt {
                failure: Some(failure),
                ..record.attempts[0].clone()
            };
            record.attempts.insert(0, failed);
        }
        assert_eq!(
            record.wasted_tokens(),
            WastedTokens {
                recomputed: 24,
                ..Default::default()
            }
        );
    }
}

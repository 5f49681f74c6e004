//! How an engine ended a response: with an answer or without one, and whether the token limit cut it.

use super::super::{Outcome, RequestRecord};
use tokenweir_protocol::openai::Api;

/// How an engine ended a response without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseEnd {
    /// The response has an answer, and the model ended it.
    Whole,
    /// The model ended the response without an answer, or with its first token.
    Empty,
    /// The response ended at its token limit.
    Cut,
}

impl RequestRecord {
    /// Whether the engine ended the response without an error but with no output except reasoning.
    pub fn is_empty_response(&self) -> bool {
        self.has_ended_response() && !self.observed.has_answer
    }

    /// How the engine ended the response. `None`: the engine did not end it, or the gateway did not read it.
    pub fn response_end(&self) -> Option<ResponseEnd> {
        if !self.has_ended_response() {
            return None;
        }
        let has_one_token = self.output_tokens().is_some_and(|tokens| tokens <= 1);
        let is_empty = !self.observed.has_answer || has_one_token && !self.has_wrong_usage();
        Some(match (self.is_cut(), is_empty) {
            (true, _) => ResponseEnd::Cut,
            (false, true) => ResponseEnd::Empty,
            (false, false) => ResponseEnd::Whole,
        })
    }

    /// Whether the gateway has read a generated response that the engine ended without an error.
    pub(super) fn has_ended_response(&self) -> bool {
        let observed = &*self.observed;
        let generates = self.api.is_some_and(Api::generates);
        let is_inspected =
            observed.uninspected_reason.is_none() && !observed.finish_reasons.is_empty();
        self.outcome == Outcome::Ok && generates && is_inspected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::UsageSource;
    use crate::record::fixtures::streamed;
    use tokenweir_protocol::openai::FinishReason;

    #[test]
    fn no_answer_or_one_token_is_empty() {
        let end = |finish, has_answer, tokens| {
            let mut record = streamed();
            let observed = &mut record.observed;
            observed.finish_reasons = vec![finish];
            observed.has_answer = has_answer;
            observed.usage_source = UsageSource::Exact;
            observed.usage.output = tokens;
            observed.output_events = tokens.unwrap_or(16);
            record.response_end()
        };
        let stop = Some(FinishReason::Stop);
        assert_eq!(end(stop, true, Some(2)), Some(ResponseEnd::Whole));
        assert_eq!(
            end(stop, false, Some(9)),
            Some(ResponseEnd::Empty),
            "reasoning alone"
        );
        assert_eq!(end(stop, true, Some(1)), Some(ResponseEnd::Empty));
        assert_eq!(end(stop, true, None), Some(ResponseEnd::Whole));
        assert_eq!(
            end(Some(FinishReason::Length), false, Some(1)),
            Some(ResponseEnd::Cut)
        );
        let failed = RequestRecord {
            outcome: Outcome::Truncated,
            ..streamed()
        };
        assert_eq!(failed.response_end(), None);
    }
}

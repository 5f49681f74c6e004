//! Tokens that a tenant and a key are charged with when a request has ended: the usage that the
//! engine reported, or an estimate if the engine reported none.

use crate::openai::Api;
use crate::record::{Outcome, RequestRecord};
use crate::resilience::FailureKind;

/// Tokens charged to a tenant and a key for one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenCharge {
    /// Prompt tokens, including those found in the prefix cache.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
}

impl TokenCharge {
    /// The charge of a request that has ended.
    ///
    /// vLLM reports the prompt tokens at the end of a response. If the client disconnected earlier,
    /// or the timeout that the client set expired, the predicted prompt tokens are charged:
    /// otherwise an early disconnect would cost nothing. A request that failed because of its
    /// backend is charged with the reported tokens and with the output that arrived.
    pub fn from_record(record: &RequestRecord) -> Self {
        let observed = &record.observed;
        let last_failure = record.attempts.last().and_then(|attempt| attempt.failure);
        let is_ok_or_ended_by_client = matches!(record.outcome, Outcome::Ok | Outcome::Cancelled)
            || [FailureKind::ClientTimeout, FailureKind::TotalTimeout]
                .iter()
                .any(|kind| last_failure == Some(kind.as_str()));
        let generates = record.api.is_some_and(Api::generates);
        let predicted_tokens =
            || Some(record.selected_candidate()?.candidate.prompt.round() as u64);
        let is_charged = is_ok_or_ended_by_client && generates && !record.attempts.is_empty();
        let input = observed.usage.input.or_else(|| predicted_tokens().filter(|_| is_charged));
        Self { input: input.unwrap_or(0), output: record.output_tokens().unwrap_or(0) }
    }

    /// Sum of the prompt and output tokens.
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{UsageSource, fixtures};

    #[test]
    fn a_response_is_charged_by_the_usage_of_the_engine() {
        let record = fixtures::streamed();
        let usage = record.observed.usage;
        let charge = TokenCharge::from_record(&record);
        assert_eq!(Some(charge.input), usage.input);
        assert_eq!(Some(charge.output), usage.output);
        assert_eq!(charge.total(), charge.input + charge.output);
        assert!(charge.input > 0 && charge.output > 0);
    }

    #[test]
    fn a_client_disconnect_is_charged_for_the_prompt_and_the_output_so_far() {
        let mut record = fixtures::streamed();
        let predicted = record.selected_candidate().unwrap().candidate.prompt.round() as u64;
        record.outcome = Outcome::Cancelled;
        record.observed.usage.input = None;
        record.observed.usage.output = None;
        record.observed.usage_source = UsageSource::Estimated;
        record.observed.estimated_tokens = 7;
        assert_eq!(TokenCharge::from_record(&record), TokenCharge { input: predicted, output: 7 });
        record.attempts.clear();
        record.observed.estimated_tokens = 0;
        assert_eq!(
            TokenCharge::from_record(&record),
            TokenCharge::default(),
            "no backend received it"
        );
    }

    #[test]
    fn a_client_timeout_is_charged_for_the_prompt() {
        let mut record = fixtures::streamed();
        let predicted = record.selected_candidate().unwrap().candidate.prompt.round() as u64;
        record.outcome = Outcome::Timeout;
        record.observed.usage.input = None;
        record.observed.usage.output = None;
        record.observed.usage_source = UsageSource::Missing;
        record.attempts.last_mut().unwrap().failure = Some(FailureKind::SlowOutput.as_str());
        assert_eq!(TokenCharge::from_record(&record).input, 0, "the backend was too slow");
        record.attempts.last_mut().unwrap().failure = Some(FailureKind::ClientTimeout.as_str());
        assert_eq!(TokenCharge::from_record(&record).input, predicted);
    }

    #[test]
    fn a_backend_failure_is_charged_only_for_reported_usage_and_output() {
        let mut record = fixtures::streamed();
        record.outcome = Outcome::Truncated;
        record.observed.usage.input = None;
        record.observed.usage_source = UsageSource::Estimated;
        record.observed.estimated_tokens = 3;
        assert_eq!(TokenCharge::from_record(&record), TokenCharge { input: 0, output: 3 });
        record.observed.usage_source = UsageSource::Missing;
        record.outcome = Outcome::UpstreamError;
        assert_eq!(TokenCharge::from_record(&record).total(), 0);
    }
}

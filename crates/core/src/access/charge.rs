//! What a request counts for when it has ended: the tokens that the engine counted, and where it
//! did not tell them, the best that is known.

use crate::openai::Api;
use crate::record::{Outcome, RequestRecord};
use crate::resilience::Symptom;

/// Tokens that a request has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Of its prompt, cached ones too.
    pub input: u64,
    /// Of its answer.
    pub output: u64,
}

impl Charge {
    /// Of a request that has ended.
    ///
    /// vLLM tells the length of a prompt with the end of its answer. The prompt of a client that
    /// left before, or whose own timeout ended the request, is counted as it was predicted:
    /// otherwise leaving early would be free. A request that its backend failed costs the tokens
    /// that the backend counted and those of the answer that came.
    pub fn of(record: &RequestRecord) -> Self {
        let observed = &record.observed;
        let last = record.attempts.last().and_then(|attempt| attempt.failure);
        let is_served = matches!(record.outcome, Outcome::Ok | Outcome::Cancelled)
            || last == Some(Symptom::Late.as_str());
        let generates = record.api.is_some_and(Api::generates);
        let predicted = || Some(record.predicted()?.candidate.prompt.round() as u64);
        let was_sent = is_served && generates && !record.attempts.is_empty();
        let input = observed.usage.input.or_else(|| predicted().filter(|_| was_sent));
        Self { input: input.unwrap_or(0), output: record.output_tokens().unwrap_or(0) }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{UsageSource, sample};

    #[test]
    fn an_answer_costs_what_the_engine_counted() {
        let record = sample::streamed();
        let usage = record.observed.usage;
        let charge = Charge::of(&record);
        assert_eq!(Some(charge.input), usage.input);
        assert_eq!(Some(charge.output), usage.output);
        assert_eq!(charge.total(), charge.input + charge.output);
        assert!(charge.input > 0 && charge.output > 0);
    }

    #[test]
    fn a_client_that_left_pays_for_the_prompt_and_for_what_came() {
        let mut record = sample::streamed();
        let predicted = record.predicted().unwrap().candidate.prompt.round() as u64;
        record.outcome = Outcome::Cancelled;
        record.observed.usage.input = None;
        record.observed.usage.output = None;
        record.observed.usage_source = UsageSource::Estimated;
        record.observed.estimated_tokens = 7;
        assert_eq!(Charge::of(&record), Charge { input: predicted, output: 7 });
        record.attempts.clear();
        record.observed.estimated_tokens = 0;
        assert_eq!(Charge::of(&record), Charge::default(), "no replica has seen it");
    }

    #[test]
    fn a_client_whose_own_timeout_is_over_pays_for_the_prompt() {
        let mut record = sample::streamed();
        let predicted = record.predicted().unwrap().candidate.prompt.round() as u64;
        record.outcome = Outcome::Timeout;
        record.observed.usage.input = None;
        record.observed.usage.output = None;
        record.observed.usage_source = UsageSource::Missing;
        record.attempts.last_mut().unwrap().failure = Some(Symptom::SlowOutput.as_str());
        assert_eq!(Charge::of(&record).input, 0, "the backend was too slow");
        record.attempts.last_mut().unwrap().failure = Some(Symptom::Late.as_str());
        assert_eq!(Charge::of(&record).input, predicted);
    }

    #[test]
    fn a_failure_of_a_replica_costs_only_what_was_told_and_came() {
        let mut record = sample::streamed();
        record.outcome = Outcome::Truncated;
        record.observed.usage.input = None;
        record.observed.usage_source = UsageSource::Estimated;
        record.observed.estimated_tokens = 3;
        assert_eq!(Charge::of(&record), Charge { input: 0, output: 3 });
        record.observed.usage_source = UsageSource::Missing;
        record.outcome = Outcome::UpstreamError;
        assert_eq!(Charge::of(&record).total(), 0);
    }
}

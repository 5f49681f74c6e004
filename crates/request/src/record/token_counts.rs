//! Token counts that follow from a record.

use super::RequestRecord;
use super::response::{Outcome, Termination, UsageSource};
use tokenweir_protocol::openai::{Api, Usage};

impl RequestRecord {
    /// Output tokens before the client disconnected. `None`: the client did not disconnect before
    /// the end of the response.
    pub fn tokens_before_disconnect(&self) -> Option<u64> {
        let is_disconnected =
            self.outcome == Outcome::Cancelled && self.end == Termination::ClientDisconnected;
        is_disconnected.then(|| self.output_tokens().unwrap_or(0))
    }

    /// Number of output tokens, with the accuracy of `ObservedResponse::usage_source`. `None`:
    /// the response had no output tokens to count.
    pub fn output_tokens(&self) -> Option<u64> {
        let observed = &*self.observed;
        match observed.usage_source {
            UsageSource::Exact => observed.usage.output,
            UsageSource::Continuous => observed
                .usage
                .output
                .or(Some(observed.counted_event_tokens)),
            UsageSource::Estimated => Some(observed.estimated_tokens),
            UsageSource::Missing => None,
        }
    }

    /// Output tokens ÷ duration of the request, per second. `None`: the response had no output
    /// tokens to count.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let tokens = self.output_tokens().filter(|tokens| *tokens > 0)?;
        let rate = tokens as f64 / self.duration().as_secs_f64();
        rate.is_finite().then_some(rate)
    }

    /// The counts that the engine reported. `None` for a count that is estimated.
    pub fn engine_token_counts(&self) -> Usage {
        let is_estimated = self.observed.usage_source == UsageSource::Estimated;
        let output = if is_estimated {
            None
        } else {
            self.output_tokens()
        };
        Usage {
            output,
            ..self.observed.usage
        }
    }

    /// Token counts at the end of the response. `None`: the engine did not report the number.
    pub fn final_token_counts(&self) -> Usage {
        if self.observed.usage_source != UsageSource::Exact {
            return Usage::default();
        }
        Usage {
            output: self.reported_output(),
            ..self.observed.usage
        }
    }

    /// The output tokens that the engine last reported. `None` also replaces the 0 of an API without output,
    /// such as embeddings.
    pub fn reported_output(&self) -> Option<u64> {
        let generates = self.api.is_some_and(Api::generates);
        self.observed
            .usage
            .output
            .filter(|tokens| *tokens > 0 || generates)
    }

    /// Output tokens ÷ the client's token limit. `None`: the exact count or the limit is missing,
    /// or the response has several choices, because each choice may use the limit.
    pub fn max_tokens_utilization(&self) -> Option<f64> {
        let limit = self.options.max_tokens.filter(|limit| *limit > 0)?;
        let is_single = self.observed.finish_reasons.len() == 1;
        if !is_single || self.observed.usage_source != UsageSource::Exact {
            return None;
        }
        Some(self.observed.usage.output? as f64 / limit as f64)
    }
}

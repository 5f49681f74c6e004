//! The failures of attempts that count against their backends, and streams that break.

use crate::record::{ErrorSource, Outcome, RequestRecord, Termination};
use tokenweir_protocol::openai::EngineError;

impl RequestRecord {
    /// Whether the stream broke after its first output.
    pub(crate) fn is_broken_stream(&self) -> bool {
        let is_broken = matches!(
            self.outcome,
            Outcome::Truncated | Outcome::Timeout | Outcome::StreamError | Outcome::Aborted
        );
        is_broken && self.timings.first_output.is_some()
    }

    /// Why the attempt with this index is a failure of its backend: the kind of failure, or how its response
    /// broke. `None`: the attempt did not fail, or the client or the gateway is the cause.
    pub fn backend_failure(&self, index: usize) -> Option<&'static str> {
        let attempt = self.attempts.get(index)?;
        if let Some(name) = attempt.failure {
            return attempt.failure_kind()?.is_of_backend().then_some(name);
        }
        let is_last = index + 1 == self.attempts.len();
        // A response that reaches the operator's limit of the total duration shows nothing about the backend.
        let is_broken = self.outcome.is_backend_failure() && self.end != Termination::TotalTimeout;
        (is_last && is_broken).then(|| self.ending())
    }

    /// The topic of the error that the engine reported in the attempt with this index. `None`: unknown, or no
    /// error.
    pub fn engine_error(&self, index: usize) -> Option<EngineError> {
        let attempt = self.attempts.get(index)?;
        if attempt.failure.is_some() || index + 1 < self.attempts.len() {
            return attempt.engine_error;
        }
        self.observed.error.as_ref()?.about
    }

    /// The information in the error response of the attempt with this index, beyond its status. `None`: no such
    /// information.
    pub fn error_source(&self, index: usize) -> Option<ErrorSource> {
        let attempt = self.attempts.get(index)?;
        let of_engine = self.engine_error(index).map(ErrorSource::Engine);
        attempt.proxy.or(of_engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fixtures::streamed;

    #[test]
    fn only_failures_of_backends_count() {
        let mut record = streamed();
        record.attempts.push(record.attempts[0].clone());
        assert_eq!(
            [0, 1, 2].map(|index| record.backend_failure(index)),
            [None; 3]
        );
        record.attempts[0].failure = Some("server_error");
        record.outcome = Outcome::Truncated;
        let broken = Some(record.ending());
        assert_eq!(
            [0, 1].map(|index| record.backend_failure(index)),
            [Some("server_error"), broken]
        );
        for cause in ["stale", "gateway_exhausted", "not_stored", "client_timeout"] {
            record.attempts[0].failure = Some(cause);
            assert_eq!(record.backend_failure(0), None, "{cause}");
        }
    }
}

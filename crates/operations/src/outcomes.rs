//! The label matchers of failed and of refused requests, which dashboards and alerts share. The
//! live page and `tokenweir top` count the same outcomes.

/// The outcomes of failed requests: a backend failed the request.
pub(crate) const FAILED_OUTCOMES: &str =
    "outcome=~\"upstream_error|stream_error|truncated|aborted|timeout\"";
/// The outcome of refused requests: the gateway answered with 429 or 503, because no backend was
/// available or had capacity, or because the gateway was at its own limit.
pub(crate) const REFUSED_OUTCOME: &str = "outcome=\"rejected\"";

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::record::Outcome;

    #[test]
    fn the_matchers_have_the_outcomes_that_the_gateway_counts_as_failed_and_refused() {
        let failed = Outcome::ALL.into_iter().filter(|outcome| outcome.is_backend_failure());
        let failed: Vec<&str> = failed.map(Outcome::as_str).collect();
        assert_eq!(FAILED_OUTCOMES, format!("outcome=~\"{}\"", failed.join("|")));
        assert_eq!(REFUSED_OUTCOME, format!("outcome=\"{}\"", Outcome::Rejected.as_str()));
    }
}

//! The label matchers of failed and of refused requests in the queries of alerts. The live page of the
//! gateway and `tokenweir top` count the same outcomes.

/// Matches failed requests: those that failed because of a backend.
pub(crate) const FAILED_OUTCOMES: &str =
    "outcome=~\"upstream_error|stream_error|truncated|aborted|timeout\"";
/// Matches refused requests: the gateway answered 429 or 503, because no backend was available or had
/// capacity, or because the gateway was at its own limit.
pub(crate) const REFUSED_OUTCOME: &str = "outcome=\"rejected\"";
/// Matches the requests of which alerts compute shares: all except those whose client made an error or
/// disconnected.
const JUDGED_OUTCOMES: &str = "outcome!~\"client_error|cancelled\"";

/// The query of a condition about the requests that the label matcher `outcome` matches. They must be more
/// than 5 % of the requests of a model in five minutes, and at least `min_count`. If no single model fulfils
/// this, but all models together do, the condition holds once, without the label of a model.
pub(crate) fn share_by_model(outcome: &str, min_count: u32) -> String {
    let share = |by: &str| {
        format!(
            "(\n  \
             sum{by}(rate(tokenweir_requests_total{{{outcome}}}[5m]))\n  \
             / sum{by}(rate(tokenweir_requests_total{{{JUDGED_OUTCOMES}}}[5m])) > 0.05\n  \
             and sum{by}(increase(tokenweir_requests_total{{{outcome}}}[5m])) >= {min_count}\n\
             )"
        )
    };
    let of_model = share(" by (gen_ai_request_model) ");
    format!("{of_model}\nor (\n{}\nunless on ()\n{of_model}\n)", share(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_request::record::Outcome;

    #[test]
    fn label_matchers_have_failed_and_refused_outcomes() {
        let failed = Outcome::ALL.into_iter().filter(|outcome| outcome.is_backend_failure());
        let failed: Vec<&str> = failed.map(Outcome::as_str).collect();
        assert_eq!(FAILED_OUTCOMES, format!("outcome=~\"{}\"", failed.join("|")));
        assert_eq!(REFUSED_OUTCOME, format!("outcome=\"{}\"", Outcome::Rejected.as_str()));
    }
}

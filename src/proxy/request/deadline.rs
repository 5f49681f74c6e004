//! The deadline of the first output of a response.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::future::Future;
use std::time::{Duration, Instant};
use tokenweir_core::error::GatewayError;
use tokenweir_core::record::RequestRecord;

/// The deadline of the first output of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FirstOutputDeadline {
    at: Instant,
    limit: Duration,
    /// Whether the client set the deadline.
    pub(crate) is_set_by_client: bool,
}

/// The headers with the read timeout of OpenAI's SDKs, in seconds: Python and JavaScript.
static CLIENT_TIMEOUT_HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("x-stainless-read-timeout"),
    HeaderName::from_static("x-stainless-timeout"),
];

/// The deadline of a request: the configured timeout from the request head, or that of the client
/// if it is shorter. Only streams have a first output before their end, so for other responses only
/// the timeout of the client counts. `None`: no timeout.
pub(crate) fn first_output_deadline(
    record: &RequestRecord,
    headers: &HeaderMap,
    configured: Option<Duration>,
) -> Option<FirstOutputDeadline> {
    let configured = configured.filter(|_| record.options.stream);
    let client_limit =
        CLIENT_TIMEOUT_HEADERS.iter().find_map(|name| parse_seconds(headers.get(name)?));
    let is_set_by_client =
        client_limit.is_some_and(|limit| configured.is_none_or(|configured| limit < configured));
    let limit = if is_set_by_client { client_limit } else { configured }?;
    Some(FirstOutputDeadline {
        at: record.timings.accepted.checked_add(limit)?,
        limit,
        is_set_by_client,
    })
}

fn parse_seconds(value: &HeaderValue) -> Option<Duration> {
    let seconds = value.to_str().ok()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero())
}

impl FirstOutputDeadline {
    /// The time of the deadline.
    pub(crate) const fn at(self) -> Instant {
        self.at
    }

    /// The time of the deadline, if it is before `other`.
    pub(crate) fn if_before(self, other: Instant) -> Option<Instant> {
        (self.at < other).then_some(self.at)
    }

    /// The error for the client when the deadline has passed.
    pub(crate) fn error(self) -> GatewayError {
        GatewayError::FirstOutputTimeout { limit: self.limit }
    }
}

/// Runs a future until the deadline, if there is one.
pub(crate) async fn within_deadline<T>(
    deadline: Option<FirstOutputDeadline>,
    future: impl Future<Output = T>,
) -> Result<T, FirstOutputDeadline> {
    match deadline {
        None => Ok(future.await),
        Some(deadline) => {
            let result = tokio::time::timeout_at(deadline.at.into(), future).await;
            result.map_err(|_| deadline)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::record::fixtures::streamed;

    fn limit(stream: bool, header: Option<(&'static str, &'static str)>) -> Option<(u64, bool)> {
        let mut record = streamed();
        record.options.stream = stream;
        let mut headers = HeaderMap::new();
        headers.extend(
            header.map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            }),
        );
        let deadline = first_output_deadline(&record, &headers, Some(Duration::from_mins(10)))?;
        assert_eq!(deadline.at, record.timings.accepted + deadline.limit);
        Some((deadline.limit.as_secs(), deadline.is_set_by_client))
    }

    #[test]
    fn a_clients_shorter_timeout_wins() {
        assert_eq!(limit(true, None), Some((600, false)));
        assert_eq!(limit(true, Some(("x-stainless-read-timeout", "30.0"))), Some((30, true)));
        assert_eq!(limit(true, Some(("x-stainless-timeout", "900"))), Some((600, false)));
    }

    #[test]
    fn only_the_client_limits_a_request_without_a_stream() {
        assert_eq!(limit(false, None), None);
        assert_eq!(limit(false, Some(("x-stainless-timeout", "900"))), Some((900, true)));
    }

    #[test]
    fn an_invalid_timeout_is_ignored() {
        for value in ["", "0", "-1", "NaN", "inf", "soon", "1e300"] {
            assert_eq!(limit(false, Some(("x-stainless-timeout", value))), None, "{value}");
        }
    }
}

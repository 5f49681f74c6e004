//! The deadline for the first output of a response, from the configured timeout and the timeout
//! that the client sent.

use crate::backend::routes::RoutePolicy;
use crate::proxy::context::RequestSettings;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokenweir_core::error::GatewayError;
use tokenweir_core::observe::StreamPolicy;
use tokenweir_core::record::RequestRecord;
use tokenweir_core::resilience::FailureKind;

/// The deadline for the first output of the response to one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FirstOutputDeadline {
    at: Instant,
    /// The time from the request head to the deadline.
    limit: Duration,
    /// The timeout that the deadline follows from.
    source: DeadlineSource,
}

/// The deadlines of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestDeadlines {
    /// The deadline for the first output. `None`: no timeout applies.
    pub(crate) first_output: Option<FirstOutputDeadline>,
    /// The deadline for the end of the response. `None`: no total timeout applies.
    pub(crate) end: Option<Instant>,
}

/// The timeout that a deadline follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeadlineSource {
    /// The configured timeout of the first output.
    FirstOutput,
    /// A header of the client.
    Client,
    /// The configured timeout of the whole request.
    Total,
}

/// The request headers in which OpenAI's SDKs send their read timeout, in seconds. The first is
/// that of the Python SDK, the second that of the JavaScript SDK.
static CLIENT_TIMEOUT_HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("x-stainless-read-timeout"),
    HeaderName::from_static("x-stainless-timeout"),
];

impl RequestDeadlines {
    /// The deadlines of a request, counted from its head. The timeouts are those of its configured
    /// route (`route_total`), or else of its model (`policy`), or else the global ones.
    pub(crate) fn new(
        record: &RequestRecord,
        headers: &HeaderMap,
        settings: &RequestSettings,
        policy: &RoutePolicy,
        route_total: Option<Duration>,
    ) -> Self {
        let first_output = policy.first_output.or(settings.first_output_timeout);
        let total = route_total.or(policy.total).or(settings.total_timeout);
        Self {
            first_output: first_output_deadline(record, headers, first_output, total),
            end: total.and_then(|total| record.timings.accepted.checked_add(total)),
        }
    }

    /// Sets these deadlines, and the idle timeout and the truncation handling of the model, in the
    /// policy of a stream.
    pub(crate) fn apply(self, route: &RoutePolicy, stream_policy: &mut StreamPolicy) {
        stream_policy.first_output_by = self.first_output.map(FirstOutputDeadline::at);
        stream_policy.ends_by = self.end;
        stream_policy.idle = route.idle;
        stream_policy.rules.on_truncation =
            route.on_truncation.unwrap_or(stream_policy.rules.on_truncation);
    }
}

/// The deadline for the first output of a request, counted from its head: the shortest of
/// `configured_limit`, the timeout that the client sent and the timeout `total` of the whole
/// request. `configured_limit` applies to streams only, because other responses have no output
/// before their end. `None`: no timeout applies.
pub(crate) fn first_output_deadline(
    record: &RequestRecord,
    headers: &HeaderMap,
    configured_limit: Option<Duration>,
    total: Option<Duration>,
) -> Option<FirstOutputDeadline> {
    let configured_limit = configured_limit.filter(|_| record.options.stream);
    let client_limit =
        CLIENT_TIMEOUT_HEADERS.iter().find_map(|name| parse_seconds(headers.get(name)?));
    let limits = [
        (configured_limit, DeadlineSource::FirstOutput),
        (total, DeadlineSource::Total),
        (client_limit, DeadlineSource::Client),
    ];
    let limits = limits.into_iter().filter_map(|(limit, source)| Some((limit?, source)));
    let (limit, source) = limits.min_by_key(|(limit, _)| *limit)?;
    Some(FirstOutputDeadline { at: record.timings.accepted.checked_add(limit)?, limit, source })
}

/// Parses a number of seconds. `None`: the value is not a number, or not positive and finite.
fn parse_seconds(value: &HeaderValue) -> Option<Duration> {
    let seconds = value.to_str().ok()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero())
}

impl FirstOutputDeadline {
    /// The instant of the deadline.
    const fn at(self) -> Instant {
        self.at
    }

    /// The instant of the deadline. `None`: the deadline is not before `other`.
    pub(crate) fn if_before(self, other: Instant) -> Option<Instant> {
        (self.at < other).then_some(self.at)
    }

    /// The error for the client when the deadline has passed.
    pub(crate) fn error(self) -> GatewayError {
        let limit = self.limit;
        match self.source {
            DeadlineSource::Total => GatewayError::TotalTimeout { limit },
            _ => GatewayError::FirstOutputTimeout { limit },
        }
    }

    /// The kind of the failure of an attempt when the deadline has passed.
    pub(crate) const fn failure_kind(self) -> FailureKind {
        match self.source {
            DeadlineSource::FirstOutput => FailureKind::SlowOutput,
            DeadlineSource::Client => FailureKind::ClientTimeout,
            DeadlineSource::Total => FailureKind::TotalTimeout,
        }
    }
}

/// Awaits `future` until `deadline`. Returns the deadline as the error if it passes first. `None`:
/// waits without a limit. `future` is pinned, because a future that is an argument would have memory
/// for each arm, and for the argument too.
pub(crate) async fn within_deadline<T>(
    deadline: Option<FirstOutputDeadline>,
    future: Pin<&mut impl Future<Output = T>>,
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

    fn deadline_limit(
        stream: bool,
        header: Option<(&'static str, &'static str)>,
    ) -> Option<(u64, bool)> {
        let mut record = streamed();
        record.options.stream = stream;
        let mut headers = HeaderMap::new();
        headers.extend(
            header.map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            }),
        );
        let deadline =
            first_output_deadline(&record, &headers, Some(Duration::from_mins(10)), None)?;
        assert_eq!(deadline.at, record.timings.accepted + deadline.limit);
        Some((deadline.limit.as_secs(), deadline.source == DeadlineSource::Client))
    }

    #[test]
    fn a_clients_shorter_timeout_wins() {
        assert_eq!(deadline_limit(true, None), Some((600, false)));
        assert_eq!(
            deadline_limit(true, Some(("x-stainless-read-timeout", "30.0"))),
            Some((30, true))
        );
        assert_eq!(deadline_limit(true, Some(("x-stainless-timeout", "900"))), Some((600, false)));
    }

    #[test]
    fn only_the_client_limits_a_request_without_a_stream() {
        assert_eq!(deadline_limit(false, None), None);
        assert_eq!(deadline_limit(false, Some(("x-stainless-timeout", "900"))), Some((900, true)));
    }

    #[test]
    fn the_total_timeout_limits_every_request() {
        let mut record = streamed();
        for stream in [true, false] {
            record.options.stream = stream;
            let limit = Duration::from_secs(30);
            let deadline = first_output_deadline(&record, &HeaderMap::new(), None, Some(limit));
            assert_eq!(deadline.unwrap().failure_kind(), FailureKind::TotalTimeout);
            assert_eq!(deadline.unwrap().error(), GatewayError::TotalTimeout { limit });
        }
    }

    #[test]
    fn an_invalid_timeout_is_ignored() {
        for value in ["", "0", "-1", "NaN", "inf", "soon", "1e300"] {
            assert_eq!(
                deadline_limit(false, Some(("x-stainless-timeout", value))),
                None,
                "{value}"
            );
        }
    }
}

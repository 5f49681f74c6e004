//! The deadlines of a response: the configured deadlines, and the time for which the client waits.

use super::identity::HeaderLookup;
use super::settings::RequestSettings;
use crate::backend::routes::RoutePolicy;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::time::{Duration, Instant};
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::StreamPolicy;
use tokenweir_request::record::RequestRecord;
use tokenweir_routing::resilience::FailureKind;

/// The time at which the gateway stops waiting, and the error that follows.
#[derive(Debug, Clone, Copy)]
pub struct ResponseDeadline {
    pub(crate) at: Instant,
    /// The timeout that determines `at`. The error text states this timeout.
    limit: Duration,
    /// The failure of an attempt when the deadline has passed. It names the kind of timeout: first output,
    /// whole request, or announced by the client.
    pub failure: FailureKind,
}

/// The deadlines of an attempt, which apply until the response head is sent to the client.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttemptDeadlines {
    /// The deadline for the first output, from the shorter one of the configured first-output
    /// timeout and total timeout. `None`: no timeout applies.
    pub(crate) first_output: Option<ResponseDeadline>,
    /// The timeout that the client announced, and its start: the time of the last byte of the request or of the
    /// response. `None`: the client announced none, or the timeout does not apply.
    client: Option<(Duration, Instant)>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestDeadlines {
    pub attempt: AttemptDeadlines,
    /// The deadline for the end of the response. `None`: no total timeout applies.
    pub end: Option<Instant>,
}

/// The request headers in which OpenAI's SDKs send their timeout in seconds. The Python SDK sends the first
/// header, a timeout for each byte. The JavaScript SDK sends the second header, a timeout for the response head
/// only.
static CLIENT_TIMEOUT_HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("x-stainless-read-timeout"),
    HeaderName::from_static("x-stainless-timeout"),
];
/// Time after the client's timeout for the client to disconnect by itself. If the connection is still open
/// after that, the client is probably gone, and an intermediate proxy keeps the connection open.
const CLIENT_MARGIN: Duration = Duration::from_secs(5);

impl RequestDeadlines {
    /// The deadlines of a request whose body was read, counted from its head. Each timeout comes from the first
    /// of these that sets it: the configured route (`route_total`), the model (`policy`), the global settings.
    pub(crate) fn new(
        record: &RequestRecord,
        headers: &HeaderMap,
        settings: &RequestSettings,
        policy: &RoutePolicy,
        route_total: Option<Duration>,
    ) -> Self {
        let first_output = policy.first_output.or(settings.first_output_timeout);
        let total = route_total.or(policy.total).or(settings.total_timeout);
        let mut attempt = AttemptDeadlines::new(record, headers, first_output, total);
        if record.outlives_connection() {
            // This attempt does not end when the client disconnects, so the client's timeout does not apply.
            attempt = attempt.without_client();
        }
        Self {
            attempt,
            end: total.and_then(|total| record.timings.accepted.checked_add(total)),
        }
    }

    /// Writes these deadlines into the policy of a stream, with the idle timeout and the truncation handling of
    /// the model.
    pub(crate) fn apply(self, route: &RoutePolicy, stream_policy: &mut StreamPolicy) {
        stream_policy.first_output_by = self.attempt.first_output.map(|deadline| deadline.at);
        stream_policy.ends_by = self.end;
        stream_policy.idle = route.idle;
        stream_policy.rules.on_truncation = route
            .on_truncation
            .unwrap_or(stream_policy.rules.on_truncation);
    }
}

impl AttemptDeadlines {
    /// The deadlines of a request: `configured_limit` for the first output, and the timeout `total` of the
    /// whole request, are counted from its head. `configured_limit` applies to streams only, because other
    /// responses have no output before their end. The client's timeout is counted from the end of the request
    /// body.
    pub(crate) fn new(
        record: &RequestRecord,
        headers: &HeaderMap,
        configured_limit: Option<Duration>,
        total: Option<Duration>,
    ) -> Self {
        let configured_limit = if record.options.stream {
            configured_limit
        } else {
            None
        };
        let accepted = record.timings.accepted;
        let limits = [
            (configured_limit, FailureKind::SlowOutput),
            (total, FailureKind::TotalTimeout),
        ];
        let limits = limits
            .into_iter()
            .filter_map(|(limit, failure)| Some((limit?, failure)));
        let shortest = limits.min_by_key(|(limit, _)| *limit);
        let first_output = shortest.and_then(|(limit, failure)| {
            Some(ResponseDeadline {
                at: accepted.checked_add(limit)?,
                limit,
                failure,
            })
        });
        let headers = HeaderLookup::new(headers);
        let announced = CLIENT_TIMEOUT_HEADERS
            .iter()
            .find_map(|name| headers.get(name));
        let last_byte_at = record.timings.received.unwrap_or(accepted);
        let client = announced
            .and_then(parse_seconds)
            .map(|limit| (limit, last_byte_at));
        Self {
            first_output,
            client,
        }
    }

    /// The deadlines without the timeout that the client announced, for a response to which that timeout does
    /// not apply.
    pub(crate) fn without_client(self) -> Self {
        Self {
            client: None,
            ..self
        }
    }

    /// Restarts the client's read timeout after a byte from the backend. `now` is called only if the client
    /// announced a timeout.
    pub(crate) fn on_bytes(&mut self, now: impl FnOnce() -> Instant) {
        self.client = self.client.map(|(limit, _)| (limit, now()));
    }

    /// The earliest deadline. `None`: no deadline applies.
    pub(crate) fn next(self) -> Option<ResponseDeadline> {
        let client = self
            .client
            .and_then(|(limit, since)| ResponseDeadline::of_client(limit, since));
        let deadlines = [self.first_output, client].into_iter().flatten();
        deadlines.min_by_key(|deadline| deadline.at)
    }

    /// The time to wait until: `other`, or the next deadline if that is earlier.
    pub fn next_before(self, other: Instant) -> Instant {
        self.next().map_or(other, |deadline| deadline.at.min(other))
    }

    /// The deadline that is over at `now`. `None`: none is over.
    pub fn passed(self, now: Instant) -> Option<ResponseDeadline> {
        self.next().filter(|deadline| deadline.at <= now)
    }
}

/// Parses a number of seconds. `None`: the value is not a number, or not positive and finite.
fn parse_seconds(value: &HeaderValue) -> Option<Duration> {
    let seconds = value.to_str().ok()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|limit| !limit.is_zero())
}

impl ResponseDeadline {
    /// The deadline of a client that waits for at most `limit` for the next byte after `at`.
    fn of_client(limit: Duration, at: Instant) -> Option<Self> {
        let at = at.checked_add(limit)?.checked_add(CLIENT_MARGIN)?;
        Some(Self {
            at,
            limit,
            failure: FailureKind::ClientTimeout,
        })
    }

    /// The error for the client when the deadline has passed.
    pub(crate) fn error(self) -> GatewayError {
        let limit = self.limit;
        match self.failure {
            FailureKind::TotalTimeout => GatewayError::TotalTimeout { limit },
            FailureKind::ClientTimeout => GatewayError::ClientTimeout { limit },
            _ => GatewayError::FirstOutputTimeout { limit },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_request::record::fixtures::streamed;

    const FIRST_OUTPUT: Duration = Duration::from_mins(10);

    fn deadlines(stream: bool, header: Option<(&'static str, &'static str)>) -> AttemptDeadlines {
        let mut record = streamed();
        record.options.stream = stream;
        record.timings.received = Some(record.timings.accepted + FIRST_OUTPUT / 2);
        let mut headers = HeaderMap::new();
        headers.extend(header.map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        }));
        AttemptDeadlines::new(&record, &headers, Some(FIRST_OUTPUT), None)
    }

    #[test]
    fn a_client_timeout_gets_a_margin() {
        let accepted = streamed().timings.accepted;
        let mut deadlines = deadlines(true, Some(("x-stainless-read-timeout", "30.0")));
        let first = deadlines.next().unwrap();
        assert_eq!(
            (first.limit.as_secs(), first.failure),
            (30, FailureKind::ClientTimeout)
        );
        assert!(
            first.at >= accepted + FIRST_OUTPUT / 2 + first.limit,
            "since the body"
        );
        assert_eq!(
            first.error().outcome(),
            tokenweir_request::record::Outcome::Cancelled
        );
        let byte_at = first.at + Duration::from_secs(1);
        deadlines.on_bytes(|| byte_at);
        assert_eq!(
            deadlines.next().unwrap().at,
            byte_at + first.limit + CLIENT_MARGIN
        );
        assert!(deadlines.passed(first.at).is_none());
        assert_eq!(
            deadlines.without_client().next().unwrap().failure,
            FailureKind::SlowOutput
        );
    }

    #[test]
    fn the_earliest_deadline_counts() {
        let failure = |stream, header| {
            deadlines(stream, header)
                .next()
                .map(|deadline| deadline.failure)
        };
        let long = Some(("x-stainless-timeout", "900"));
        assert_eq!(failure(true, None), Some(FailureKind::SlowOutput));
        assert_eq!(failure(true, long), Some(FailureKind::SlowOutput));
        assert_eq!(failure(false, None), None);
        assert_eq!(failure(false, long), Some(FailureKind::ClientTimeout));
    }

    #[test]
    fn the_total_timeout_limits_every_request() {
        let mut record = streamed();
        for stream in [true, false] {
            record.options.stream = stream;
            let limit = Duration::from_secs(30);
            let deadlines = AttemptDeadlines::new(&record, &HeaderMap::new(), None, Some(limit));
            let deadline = deadlines.next().unwrap();
            assert_eq!(deadline.failure, FailureKind::TotalTimeout);
            assert_eq!(deadline.error(), GatewayError::TotalTimeout { limit });
        }
    }

    #[test]
    fn an_invalid_timeout_header_is_ignored() {
        for value in ["", "0", "-1", "NaN", "inf", "soon", "1e300"] {
            let deadlines = deadlines(false, Some(("x-stainless-timeout", value)));
            assert!(deadlines.next().is_none(), "{value}");
        }
    }
}

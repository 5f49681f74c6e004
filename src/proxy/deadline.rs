//! Until when the first output of an answer is waited for.

use http::{HeaderMap, HeaderName, HeaderValue};
use std::future::Future;
use std::time::{Duration, Instant};
use tokenweir_core::error::Error;
use tokenweir_core::record::RequestRecord;

/// The end of the wait for the first output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    limit: Duration,
    /// The client set it.
    pub(super) is_clients: bool,
}

/// How long OpenAI's clients wait for a byte, in seconds: Python's and JavaScript's.
static CLIENT_TIMEOUTS: [HeaderName; 2] = [
    HeaderName::from_static("x-stainless-read-timeout"),
    HeaderName::from_static("x-stainless-timeout"),
];

/// The deadline of a request: the configured time from its head on, or the client's if that is
/// shorter. Only streams have a first output; of other answers all comes at once, and they are
/// waited for as long as the client does.
pub(super) fn of(
    record: &RequestRecord,
    headers: &HeaderMap,
    configured: Option<Duration>,
) -> Option<Deadline> {
    let configured = configured.filter(|_| record.asked.stream);
    let clients = CLIENT_TIMEOUTS.iter().find_map(|name| seconds(headers.get(name)?));
    let is_clients = clients.is_some_and(|clients| configured.is_none_or(|ours| clients < ours));
    let limit = if is_clients { clients } else { configured }?;
    Some(Deadline { at: record.timings.accepted.checked_add(limit)?, limit, is_clients })
}

fn seconds(value: &HeaderValue) -> Option<Duration> {
    let seconds = value.to_str().ok()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero())
}

impl Deadline {
    /// The moment.
    pub(super) const fn at(self) -> Instant {
        self.at
    }

    /// The moment, if it is before another one.
    pub(super) fn before(self, other: Instant) -> Option<Instant> {
        (self.at < other).then_some(self.at)
    }

    /// What the client is told when it is over.
    pub(super) fn error(self) -> Error {
        Error::FirstOutputTimeout { limit: self.limit }
    }
}

/// Waits for something until the deadline, if there is one.
pub(super) async fn within<T>(
    deadline: Option<Deadline>,
    wanted: impl Future<Output = T>,
) -> Result<T, Deadline> {
    match deadline {
        None => Ok(wanted.await),
        Some(deadline) => {
            let result = tokio::time::timeout_at(deadline.at.into(), wanted).await;
            result.map_err(|_| deadline)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::record::sample::streamed;

    fn limit(stream: bool, header: Option<(&'static str, &'static str)>) -> Option<(u64, bool)> {
        let mut record = streamed();
        record.asked.stream = stream;
        let mut headers = HeaderMap::new();
        headers.extend(
            header.map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            }),
        );
        let deadline = of(&record, &headers, Some(Duration::from_mins(10)))?;
        assert_eq!(deadline.at, record.timings.accepted + deadline.limit);
        Some((deadline.limit.as_secs(), deadline.is_clients))
    }

    #[test]
    fn a_clients_shorter_timeout_wins() {
        assert_eq!(limit(true, None), Some((600, false)));
        assert_eq!(limit(true, Some(("x-stainless-read-timeout", "30.0"))), Some((30, true)));
        assert_eq!(limit(true, Some(("x-stainless-timeout", "900"))), Some((600, false)));
    }

    #[test]
    fn what_is_no_stream_is_waited_for_as_long_as_its_client_does() {
        assert_eq!(limit(false, None), None);
        assert_eq!(limit(false, Some(("x-stainless-timeout", "900"))), Some((900, true)));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for value in ["", "0", "-1", "NaN", "inf", "soon", "1e300"] {
            assert_eq!(limit(false, Some(("x-stainless-timeout", value))), None, "{value}");
        }
    }
}

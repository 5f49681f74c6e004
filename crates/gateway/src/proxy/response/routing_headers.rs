//! Response headers that name the backend of a request and the reason of the routing decision. Clients with the
//! permission `routing_headers` can ask for them. No client has the permission by default, because the headers
//! reveal the names and the number of the backends.

use http::{HeaderMap, HeaderName, HeaderValue};
use tokenweir_request::record::RequestRecord;

/// The request header with which a client asks for the response headers. Its value is `1`.
const REQUEST_HEADER: HeaderName = HeaderName::from_static("x-tokenweir-explain");
/// The response header that names the last backend to which the request was sent.
const BACKEND: HeaderName = HeaderName::from_static("x-tokenweir-backend");
/// The response header with the reason of the routing decision.
const REASON: HeaderName = HeaderName::from_static("x-tokenweir-reason");
/// The response header with the time in the admission queue, in milliseconds.
const QUEUE_MILLIS: HeaderName = HeaderName::from_static("x-tokenweir-queue-ms");

/// Whether the client asks for the response headers about routing.
pub(crate) fn is_requested(headers: &HeaderMap) -> bool {
    headers
        .get(REQUEST_HEADER)
        .is_some_and(|value| value == "1")
}

/// Adds the routing headers to the response of a backend.
pub(crate) fn write(headers: &mut HeaderMap, record: &RequestRecord) {
    let backend = record
        .backend()
        .and_then(|backend| backend.as_str().parse().ok());
    let reason = record.decision.as_ref().map(|decision| decision.reason());
    let queued = record.gateway_queue_wait().unwrap_or_default().as_millis();
    let queued = u64::try_from(queued).unwrap_or(u64::MAX);
    let values: [(HeaderName, Option<HeaderValue>); 3] = [
        (BACKEND, backend),
        (REASON, reason.map(HeaderValue::from_static)),
        (QUEUE_MILLIS, Some(queued.into())),
    ];
    headers.extend(
        values
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?))),
    );
}

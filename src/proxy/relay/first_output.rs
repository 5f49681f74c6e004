//! Buffers the beginning of a response until its first output, so that a failure before it can
//! still be retried on another backend.
//!
//! vLLM sends its 200 before it has computed the prompt, and reports later failures inside the
//! body.

use crate::proxy::request::deadline::FirstOutputDeadline;
use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Body;
use memchr::memmem;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::observe::{Exchange, PrefetchedBody};
use tokenweir_core::resilience::FailureKind;
use tokenweir_net::backend_body::BackendBody;

/// Most bytes of a response that are buffered. A longer beginning counts as output.
const MAX_BUFFERED_BYTES: usize = 64 << 10;
/// Longest wait for the body of an error response.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// Texts in vLLM's error responses when its engine is dead. The process ends a few seconds later.
const ENGINE_DEAD_MESSAGES: [&[u8]; 2] =
    [b"The server had an error while processing your request", b"EngineDeadError"];

/// Reads the beginning of a response: to its first output, to its end, or for `max_wait`.
///
/// A comment in the stream ends the buffering too. Backends send comments to keep connections
/// alive, and a comment reaches the client only behind the response head. The request cannot fail
/// over after that.
///
/// Fails if the deadline of the client or of the gateway passes before the first output.
pub(super) async fn buffer_until_first_output(
    exchange: &mut Exchange,
    status: StatusCode,
    body: BackendBody,
    max_wait: Duration,
    deadline: Option<FirstOutputDeadline>,
) -> Result<PrefetchedBody<BackendBody>, FirstOutputDeadline> {
    let mut begun = PrefetchedBody::new(body);
    // A keep-alive comment of the gateway cannot be sent before the head.
    let interval = exchange.keep_alive_interval();
    let max_wait = interval.map_or(max_wait, |interval| interval.min(max_wait));
    let max_wait = if status.is_success() { max_wait } else { ERROR_BODY_TIMEOUT };
    let until = clock::now() + max_wait;
    let earlier = deadline.and_then(|deadline| Some((deadline.if_before(until)?, deadline)));
    // The timer is registered only when it is polled.
    let mut timeout =
        std::pin::pin!(tokio::time::sleep_until(earlier.map_or(until, |(at, _)| at).into()));
    let mut buffered_bytes = 0;
    while is_undecided(exchange, status) && buffered_bytes <= MAX_BUFFERED_BYTES {
        if begun.rest.is_end_stream() {
            exchange.on_end();
            break;
        }
        exchange.on_client_poll();
        let frame = tokio::select! {
            biased;
            frame = begun.rest.frame() => frame,
            () = &mut timeout => match earlier {
                Some((_, deadline)) => return Err(deadline),
                None => break,
            },
        };
        match frame {
            Some(Ok(frame)) => buffered_bytes += buffer_frame(exchange, frame, &mut begun),
            Some(Err(error)) => {
                begun.end = Some(Err(error));
                break;
            }
            None => {
                exchange.on_end();
                begun.end = Some(Ok(()));
                break;
            }
        }
    }
    Ok(begun)
}

/// Whether the response can still turn out to be a failure that must be detected.
fn is_undecided(exchange: &mut Exchange, status: StatusCode) -> bool {
    let has_output = exchange.record().timings.first_output.is_some();
    let Some(observer) = exchange.observer() else { return false };
    let observed = observer.observed();
    let is_decided =
        observed.is_complete || observed.error.is_some() || observed.uninspected_reason.is_some();
    let has_comment = observed.comments > 0;
    // The body of a 404 shows whether the backend lacks the model or something else. For any other
    // client error the status is enough.
    let needs_body = status.is_server_error()
        || status == StatusCode::NOT_FOUND
        || (status.is_success() && !observer.is_opaque() && !has_comment);
    needs_body && !has_output && !is_decided
}

/// Passes a frame to the exchange and buffers the bytes to forward. Returns their number.
fn buffer_frame(
    exchange: &mut Exchange,
    frame: Frame<Bytes>,
    begun: &mut PrefetchedBody<BackendBody>,
) -> usize {
    let frame = match frame.into_data() {
        Ok(data) => Frame::data(exchange.on_data(data)),
        Err(trailers) => trailers,
    };
    let length = frame.data_ref().map_or(0, Bytes::len);
    if length > 0 || frame.is_trailers() {
        begun.frames.push_back(frame);
    }
    length
}

/// The kind of failure that the beginning of a response shows, if any. `model` is the name of the
/// model at the backend.
pub(super) fn classify_failure(
    exchange: &mut Exchange,
    status: StatusCode,
    begun: &PrefetchedBody<BackendBody>,
    model: Option<&str>,
) -> Option<FailureKind> {
    match status {
        StatusCode::SERVICE_UNAVAILABLE => Some(FailureKind::Busy),
        // An unsupported request would fail on every backend.
        StatusCode::NOT_IMPLEMENTED => None,
        // A path or an item that does not exist is a 404 at every backend.
        StatusCode::NOT_FOUND => {
            let is_known = exchange.record().model.is_known();
            let is_named = model.is_some_and(|model| contains_any(begun, &[model.as_bytes()]));
            (is_known && is_named).then_some(FailureKind::UnknownModel)
        }
        status if status.is_server_error() && contains_any(begun, &ENGINE_DEAD_MESSAGES) => {
            Some(FailureKind::EngineDead)
        }
        status if status.is_server_error() => Some(FailureKind::ServerError),
        status if status.is_success() => classify_in_band_failure(exchange, begun),
        _ => None,
    }
}

/// Whether the buffered part of a response contains one of these texts.
fn contains_any(begun: &PrefetchedBody<BackendBody>, texts: &[&[u8]]) -> bool {
    let chunks = begun.frames.iter().filter_map(Frame::data_ref).map(AsRef::as_ref);
    let buffered = chunks.collect::<Vec<&[u8]>>().concat();
    texts.iter().any(|text| memmem::find(&buffered, text).is_some())
}

/// The kind of failure inside a success response without output, if any.
fn classify_in_band_failure(
    exchange: &mut Exchange,
    begun: &PrefetchedBody<BackendBody>,
) -> Option<FailureKind> {
    if exchange.record().timings.first_output.is_some() {
        return None;
    }
    let observer = exchange.observer()?;
    let observed = observer.observed();
    if let Some(error) = &observed.error {
        let code = error.code.as_ref().and_then(|code| code.parse().ok());
        return match code {
            Some(400..=499) => None,
            Some(503_u16) => Some(FailureKind::Busy),
            _ => Some(FailureKind::InBandError),
        };
    }
    let has_ended = begun.rest.is_end_stream() || begun.end.is_some();
    match &begun.end {
        Some(Err(_)) => Some(FailureKind::Died),
        _ if observer.has_aborted_choice() => Some(FailureKind::Draining),
        _ if has_ended && observed.is_stream && !observed.is_complete => Some(FailureKind::Empty),
        _ => None,
    }
}

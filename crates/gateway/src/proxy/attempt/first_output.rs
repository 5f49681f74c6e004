//! Buffers the beginning of a response until its first output, so that the gateway can still retry
//! the request on another backend if the response fails before the first output.
//!
//! vLLM sends the status 200 before it has computed the prompt, and reports later failures inside
//! the response body.

use super::prepared::PreparedRequest;
use crate::proxy::request::ResponseDeadline;
use crate::proxy::response::EarlyResponse;
use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;
use hyper::body::Body;
use memchr::memmem;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_protocol::clock;
use tokenweir_protocol::json::members::{is_set, visit_members};
use tokenweir_protocol::openai::Api;
use tokenweir_request::observe::{Exchange, PrefetchedBody};
use tokenweir_routing::resilience::FailureKind;

/// Maximum bytes of a response that are buffered before its first output. Beyond this size, a response without
/// output is forwarded like a response with output.
const MAX_BUFFERED_BYTES: usize = 64 << 10;
/// Maximum wait for the body of an error response.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// Texts in an error response of vLLM that show a dead engine. The vLLM process ends a few seconds after such a
/// response.
const ENGINE_DEAD_MESSAGES: [&[u8]; 2] = [
    b"The server had an error while processing your request",
    b"EngineDeadError",
];

/// Reads and buffers the beginning of a response until its first output, its end, or a time limit.
///
/// Backends send comments, blank lines, empty events or white space to keep connections alive. Such bytes reach
/// the client at once if no other event and no JSON has arrived before. After a buffered event they are
/// buffered too, which preserves the order.
///
/// Fails with the deadline that passes first.
pub(crate) async fn buffer_until_first_output(
    exchange: &mut Exchange,
    status: StatusCode,
    body: BackendBody,
    request: &PreparedRequest<'_>,
) -> Result<PrefetchedBody<BackendBody>, ResponseDeadline> {
    let mut prefetched = PrefetchedBody::new(body);
    let early = if status.is_success() {
        request.early
    } else {
        None
    };
    let began_at = clock::now();
    let wait_ends_at = began_at + max_wait(status, request);
    let mut deadlines = request.deadlines;
    deadlines.on_bytes(|| began_at);
    // Tokio registers this timer at its first poll, so it costs nothing if the response needs no wait.
    let timeout = tokio::time::sleep_until(deadlines.next_before(wait_ends_at).into());
    let mut timeout = std::pin::pin!(timeout);
    let mut buffered_bytes = 0;
    while is_undecided(exchange, status) && buffered_bytes <= MAX_BUFFERED_BYTES {
        if prefetched.rest.is_end_stream() {
            exchange.on_end();
            break;
        }
        exchange.on_client_poll();
        let frame = tokio::select! {
            biased;
            frame = next_frame(exchange, &mut prefetched, early) => frame,
            () = &mut timeout => {
                let now = clock::now();
                if request.has_begun_response() {
                    deadlines = deadlines.without_client();
                }
                if let Some(deadline) = deadlines.passed(now) {
                    return Err(deadline);
                }
                if now >= wait_ends_at {
                    break;
                }
                timeout.as_mut().reset(deadlines.next_before(wait_ends_at).into());
                continue;
            }
        };
        deadlines.on_bytes(clock::now);
        match frame {
            Some(Ok(frame)) => buffered_bytes += buffer_frame(exchange, frame, &mut prefetched),
            Some(Err(error)) => {
                prefetched.end = Some(Err(error));
                break;
            }
            None => {
                exchange.on_end();
                prefetched.end = Some(Ok(()));
                break;
            }
        }
    }
    Ok(prefetched)
}

fn max_wait(status: StatusCode, request: &PreparedRequest<'_>) -> Duration {
    if status.is_success() {
        request.context.retry.settings.first_output_buffer_timeout
    } else {
        ERROR_BODY_TIMEOUT
    }
}

/// Reads the next frame of the response. Before the wait, sends buffered bytes to the client if they only keep
/// the connection open.
fn next_frame<'a>(
    exchange: &'a Exchange,
    prefetched: &'a mut PrefetchedBody<BackendBody>,
    early: Option<&'a EarlyResponse>,
) -> impl Future<Output = Option<Result<Frame<Bytes>, <BackendBody as Body>::Error>>> {
    poll_fn(move |cx| {
        let frame = Pin::new(&mut prefetched.rest).poll_frame(cx);
        if let Some(early) = early
            && frame.is_pending()
        {
            send_keep_alive(exchange, early, &mut prefetched.frames);
        }
        frame
    })
}

/// Sends the buffered bytes to the client if they only keep the connection open.
fn send_keep_alive(
    exchange: &Exchange,
    early: &EarlyResponse,
    frames: &mut VecDeque<Frame<Bytes>>,
) {
    let Some(observer) = exchange.observer() else {
        return;
    };
    if frames.is_empty() {
        return;
    }
    let is_stream = observer.observed().is_stream;
    if observer.has_only_keep_alive() && early.is_allowed(is_stream) {
        for frame in frames.drain(..) {
            early.send(
                is_stream,
                frame.data_ref().map(AsRef::as_ref).unwrap_or_default(),
            );
        }
    }
}

/// Whether the gateway must read more of the response to decide whether the attempt failed.
fn is_undecided(exchange: &mut Exchange, status: StatusCode) -> bool {
    let has_output = exchange.record().timings.first_output.is_some();
    let Some(observer) = exchange.observer() else {
        return false;
    };
    // Empty texts alone do not show that the backend generates output.
    let has_output = has_output && observer.is_answered();
    // The body of a 404 shows whether the model or something else is missing. The body of a 400 shows whether
    // the request is too long. For other client errors the status is sufficient.
    let needs_body = status.is_success()
        || status.is_server_error()
        || matches!(status, StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST);
    needs_body && !has_output && observer.is_awaited(status.is_success())
}

/// Passes a frame of the response to the exchange, and buffers the bytes for the client. Returns the number of
/// buffered bytes.
fn buffer_frame(
    exchange: &mut Exchange,
    frame: Frame<Bytes>,
    prefetched: &mut PrefetchedBody<BackendBody>,
) -> usize {
    let frame = match frame.into_data() {
        Ok(data) => Frame::data(exchange.on_data(data)),
        Err(trailers) => trailers,
    };
    let length = frame.data_ref().map_or(0, Bytes::len);
    if length > 0 || frame.is_trailers() {
        prefetched.frames.push_back(frame);
    }
    length
}

/// The kind of failure that the beginning of a response shows. `None`: the attempt did not fail, or its failure
/// would be the same at every backend.
pub(crate) fn classify_failure(
    exchange: &mut Exchange,
    status: StatusCode,
    prefetched: &PrefetchedBody<BackendBody>,
    request: &PreparedRequest<'_>,
) -> Option<FailureKind> {
    let model = request.backend_model;
    match status {
        // A 404 that names the model reports a missing model.
        StatusCode::NOT_FOUND
            if model.is_some_and(|model| contains_any(prefetched, &[model.as_bytes()])) =>
        {
            Some(FailureKind::UnknownModel)
        }
        status if status.is_success() => {
            let kind = classify_in_band_failure(exchange, prefetched);
            if kind == Some(FailureKind::Empty) && asks_for_nothing(exchange, request, prefetched) {
                exchange.accept_empty_answer();
                return None;
            }
            kind
        }
        // A 404 to a request that names a stored response reports a missing response.
        StatusCode::NOT_FOUND if names_stored_response(request) => Some(FailureKind::NotStored),
        status => match FailureKind::of_status(status.as_u16()) {
            FailureKind::ServerError if contains_any(prefetched, &ENGINE_DEAD_MESSAGES) => {
                Some(FailureKind::EngineDead)
            }
            kind => Some(kind),
        },
    }
}

fn names_stored_response(request: &PreparedRequest<'_>) -> bool {
    request.is_lookup || request.fields.parameters.previous_response.is_some()
}

/// Whether the buffered beginning of a response contains any of `texts`.
pub(crate) fn contains_any(prefetched: &PrefetchedBody<BackendBody>, texts: &[&[u8]]) -> bool {
    let buffered = buffered(prefetched);
    texts
        .iter()
        .any(|text| memmem::find(&buffered, text).is_some())
}

/// The part of a response that was read.
pub(crate) fn buffered(prefetched: &PrefetchedBody<BackendBody>) -> Vec<u8> {
    let chunks = prefetched
        .frames
        .iter()
        .filter_map(Frame::data_ref)
        .map(AsRef::as_ref);
    chunks.collect::<Vec<&[u8]>>().concat()
}

/// The minimum number of prompt tokens that an error response about the prompt length states, as in `contains
/// at least 2049 input tokens`. `None`: no number stated.
pub(crate) fn refused_tokens(prefetched: &PrefetchedBody<BackendBody>) -> Option<u64> {
    let body = buffered(prefetched);
    let end = memmem::find(&body, b" input tokens")?;
    let before = body.get(..end)?;
    let start = before
        .iter()
        .rposition(|byte| !byte.is_ascii_digit())
        .map_or(0, |at| at + 1);
    std::str::from_utf8(before.get(start..)?).ok()?.parse().ok()
}

/// Whether a list in the request is empty. In an API without generated text, the list in the answer can then be
/// empty too.
fn asks_for_nothing(
    exchange: &mut Exchange,
    request: &PreparedRequest<'_>,
    prefetched: &PrefetchedBody<BackendBody>,
) -> bool {
    if !matches!(exchange.record().api, Some(Api::Embeddings | Api::Other)) {
        return false;
    }
    let body = request.body.original();
    let mut has_empty_list = false;
    let _ = visit_members(body, |member| {
        let value = &body[member.value];
        has_empty_list |= value.starts_with(b"[") && !is_set(value);
    });
    has_empty_list && contains_any(prefetched, &[b"[]"])
}

/// The kind of failure that a response with a success status reports in its body before the first output.
/// `None`: the response has output, or shows no failure that another backend could avoid.
fn classify_in_band_failure(
    exchange: &mut Exchange,
    prefetched: &PrefetchedBody<BackendBody>,
) -> Option<FailureKind> {
    let has_output = exchange.record().timings.first_output.is_some();
    let observer = exchange.observer()?;
    // Empty texts alone are output, and no answer.
    if has_output && observer.is_answered() {
        return None;
    }
    let observed = observer.observed();
    if let Some(error) = &observed.error {
        return match error.status() {
            Some(400..=499) => None,
            Some(503) => Some(FailureKind::Busy),
            _ => Some(FailureKind::InBandError),
        };
    }
    match &prefetched.end {
        Some(Err(_)) => Some(FailureKind::Died),
        _ if observer.has_aborted_choice() => Some(FailureKind::Draining),
        _ if observer.lacks_answer() => Some(FailureKind::Empty),
        _ => None,
    }
}

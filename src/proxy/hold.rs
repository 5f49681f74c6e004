//! The beginning of an answer is held back until it is certain that there is one: vLLM sends its
//! 200 before it has computed the prompt, and whatever goes wrong then it says inside.

use super::deadline::Deadline;
use bytes::Bytes;
use http::StatusCode;
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::body::Body;
use memchr::memmem;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::observe::{Begun, Exchange};
use tokenweir_core::resilience::Symptom;
use tokenweir_net::connection::ReplicaBody;

/// What is held of an answer at most, in bytes. One that is longer has begun.
const MOST: usize = 64 << 10;
/// How long the rest of an error is waited for.
const ERROR_PATIENCE: Duration = Duration::from_secs(1);
/// What vLLM says when its engine has died; its process ends a few seconds later.
const LAST_WORDS: [&[u8]; 2] =
    [b"The server had an error while processing your request", b"EngineDeadError"];

/// Reads the beginning of an answer: to its first output, to its end, or as long as it may be held.
/// A comment ends the hold too: it is there to keep the client's connection alive, and reaches the client
/// only if the head does. Another backend cannot have the request after that.
///
/// Fails if its client's or its own deadline is over before it has output.
pub(super) async fn hold(
    exchange: &mut Exchange,
    status: StatusCode,
    body: ReplicaBody,
    max_hold: Duration,
    deadline: Option<Deadline>,
) -> Result<Begun<ReplicaBody>, Deadline> {
    let mut begun = Begun::new(body);
    // A comment that keeps the connection alive cannot be sent before the head.
    let max_hold = exchange.keep_alive().map_or(max_hold, |every| every.min(max_hold));
    let patience = if status.is_success() { max_hold } else { ERROR_PATIENCE };
    let until = clock::now() + patience;
    let cut = deadline.and_then(|deadline| Some((deadline.before(until)?, deadline)));
    // Registered only if it is waited for.
    let mut patience =
        std::pin::pin!(tokio::time::sleep_until(cut.map_or(until, |(at, _)| at).into()));
    let mut held = 0;
    while is_open(exchange, status) && held <= MOST {
        if begun.rest.is_end_stream() {
            exchange.on_end();
            break;
        }
        exchange.on_poll();
        let frame = tokio::select! {
            biased;
            frame = begun.rest.frame() => frame,
            () = &mut patience => match cut {
                Some((_, deadline)) => return Err(deadline),
                None => break,
            },
        };
        match frame {
            Some(Ok(frame)) => held += keep(exchange, frame, &mut begun),
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

/// Whether it is still open what becomes of this answer.
fn is_open(exchange: &mut Exchange, status: StatusCode) -> bool {
    let has_output = exchange.record().timings.first_output.is_some();
    let Some(observed) = exchange.observed() else { return false };
    let is_said = observed.is_terminal || observed.error.is_some() || observed.lost.is_some();
    let has_comment = observed.comments > 0;
    // The body of a 404 says whether the backend lacks the model or something else. The status of
    // any other refusal is enough.
    let matters = status.is_server_error()
        || status == StatusCode::NOT_FOUND
        || (status.is_success() && exchange.is_reading() && !has_comment);
    matters && !has_output && !is_said
}

/// Shows a frame to the exchange and keeps what goes on. Its length.
fn keep(exchange: &mut Exchange, frame: Frame<Bytes>, begun: &mut Begun<ReplicaBody>) -> usize {
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

/// How the backend failed the request, if it did, as far as its answer has been read. `model` is the
/// name that the backend knows.
pub(super) fn symptom(
    exchange: &mut Exchange,
    status: StatusCode,
    begun: &Begun<ReplicaBody>,
    model: Option<&str>,
) -> Option<Symptom> {
    match status {
        StatusCode::SERVICE_UNAVAILABLE => Some(Symptom::Busy),
        // It would be one everywhere.
        StatusCode::NOT_IMPLEMENTED => None,
        // A path or an item that does not exist is a 404 at every backend.
        StatusCode::NOT_FOUND => {
            let is_known = exchange.record().model.is_known();
            let is_named = model.is_some_and(|model| contains(begun, &[model.as_bytes()]));
            (is_known && is_named).then_some(Symptom::UnknownModel)
        }
        status if status.is_server_error() && contains(begun, &LAST_WORDS) => {
            Some(Symptom::EngineDead)
        }
        status if status.is_server_error() => Some(Symptom::ServerError),
        status if status.is_success() => in_band(exchange, begun),
        _ => None,
    }
}

/// Whether the part of an answer that has been read contains one of these texts.
fn contains(begun: &Begun<ReplicaBody>, texts: &[&[u8]]) -> bool {
    let read = begun.frames.iter().filter_map(Frame::data_ref).map(AsRef::as_ref);
    let read = read.collect::<Vec<&[u8]>>().concat();
    texts.iter().any(|text| memmem::find(&read, text).is_some())
}

/// What went wrong inside a success without any output.
fn in_band(exchange: &mut Exchange, begun: &Begun<ReplicaBody>) -> Option<Symptom> {
    if exchange.record().timings.first_output.is_some() {
        return None;
    }
    let is_given_up = exchange.is_given_up();
    let observed = exchange.observed()?;
    if let Some(error) = &observed.error {
        let code = error.code.as_ref().and_then(|code| code.parse().ok());
        return match code {
            Some(400..=499) => None,
            Some(503_u16) => Some(Symptom::Busy),
            _ => Some(Symptom::InBandError),
        };
    }
    let is_over = begun.rest.is_end_stream() || begun.end.is_some();
    match &begun.end {
        Some(Err(_)) => Some(Symptom::Died),
        _ if is_given_up => Some(Symptom::Draining),
        _ if is_over && observed.is_stream && !observed.is_terminal => Some(Symptom::Empty),
        _ => None,
    }
}

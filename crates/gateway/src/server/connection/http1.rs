//! Serves the requests of one HTTP/1.1 connection, one after the other, on the task of the connection.
//!
//! While a request is handled, the gateway reads ahead on the connection to detect a disconnect of the client.
//! A disconnect drops the future of the response, and with it all work for the request. The response body is
//! polled for more data only when the client has accepted the previous data.

use super::http1_connection::{HeadOutcome, Http1Connection, SharedHttp1Connection};
use super::limiter::RequestPermit;
use super::request::{ConnectionContext, RequestBody};
use super::shutdown::{CloseReason, ShutdownSignal};
use crate::proxy::{ProxyResponse, ProxyResponseBody, Responding};
use crate::server::client_stream::KeyedTimer;
use crate::server::limits::ServerLimits;
use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode, Version};
use http_body::Body;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_protocol::http1::{
    self, HeadLimits, Http1ParseError, RequestHead, RequestSummary, ResponseFraming,
};
use tokenweir_request::error::GatewayError;

/// The request summary for a response without a parsed request: the request was malformed, or the connection
/// was rejected. The connection closes after such a response.
const UNPARSED_REQUEST_SUMMARY: RequestSummary = RequestSummary {
    method: Method::GET,
    is_http10: false,
    is_keep_alive: false,
};
/// Maximum wait for the client to close its side of the connection after the gateway has closed its own.
const LINGERING_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves an HTTP/1.1 connection until it ends.
///
/// Each open connection holds one future of this function. To keep the future small, functions that do not
/// await contain the values that are needed only briefly.
pub(super) async fn serve(
    context: &ConnectionContext,
    shared: SharedHttp1Connection,
    limits: &ServerLimits,
    shutdown: ShutdownSignal,
) -> io::Result<()> {
    let mut head_reader = HeadReader::new(shutdown);
    loop {
        let outcome = poll_fn(|cx| head_reader.poll(cx, &mut shared.lock(), limits)).await?;
        let (summary, permit, response) = match outcome {
            HeadOutcome::Head(head) => {
                let (summary, permit, responding) = start_request(context, &shared, head);
                let Some(response) = response_or_disconnect(&shared, responding).await else {
                    break;
                };
                (summary, Some(permit), response)
            }
            HeadOutcome::Malformed(error) => (
                UNPARSED_REQUEST_SUMMARY,
                None,
                ProxyResponseBody::complete(malformed_head_error(error).response()),
            ),
            HeadOutcome::Closed => break,
            HeadOutcome::Replaced => return Ok(()),
        };
        let mut writer = ResponseWriter::start(context, &shared, summary, response);
        poll_fn(|cx| writer.poll(cx, &shared)).await?;
        drop(permit);
        if !writer.is_keep_alive || shared.lock().has_discarded_input() {
            break;
        }
    }
    lingering_close(&shared).await
}

/// Starts the handling of a request whose head was read. Returns the summary for the response
/// encoding, the permit of the request, and the future of the response.
fn start_request(
    context: &ConnectionContext,
    shared: &SharedHttp1Connection,
    head: Box<RequestHead>,
) -> (RequestSummary, RequestPermit, Responding) {
    let RequestHead {
        request,
        is_keep_alive,
        ..
    } = *head;
    let is_http10 = request.version() < Version::HTTP_11;
    let summary = RequestSummary {
        method: request.method().clone(),
        is_http10,
        is_keep_alive,
    };
    let request = request.map(|()| RequestBody::Http1(shared.clone()));
    let abort_handle = context.abort_handle.clone();
    let (permit, responding) = context.start_request(request, abort_handle);
    (summary, permit, responding)
}

/// Waits for the response of the request handler. `None`: the client disconnected first.
async fn response_or_disconnect(
    shared: &SharedHttp1Connection,
    mut responding: Responding,
) -> Option<ProxyResponse> {
    poll_fn(|cx| match Pin::new(&mut responding).poll(cx) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        Poll::Pending => shared.lock().poll_client_disconnect(cx).map(|()| None),
    })
    .await
}

/// Encodes the head and the body of an error response with `connection: close`.
pub(super) fn encode_error_response(error: &GatewayError) -> Bytes {
    let (head, body) = error.response().into_parts();
    let body = body.into_inner().unwrap_or_default();
    let mut encoded = BytesMut::new();
    http1::encode_response_head(
        &UNPARSED_REQUEST_SUMMARY,
        &head,
        ResponseFraming::ContentLength(body.len() as u64),
        clock::wall_time,
        &mut encoded,
    );
    encoded.extend_from_slice(&body);
    encoded.freeze()
}

/// Closes the sending side of the connection. Then discards the client's input until the client closes its side
/// or [`LINGERING_CLOSE_TIMEOUT`] is over. Unread input would make the kernel reset the connection, and the
/// client could lose the end of the response.
async fn lingering_close(shared: &SharedHttp1Connection) -> io::Result<()> {
    let closing = async {
        poll_fn(|cx| shared.lock().poll_shutdown(cx)).await?;
        poll_fn(|cx| shared.lock().poll_discard_input(cx)).await;
        Ok(())
    };
    tokio::time::timeout(LINGERING_CLOSE_TIMEOUT, closing)
        .await
        .unwrap_or(Ok(()))
}

fn malformed_head_error(error: Http1ParseError) -> GatewayError {
    match error {
        Http1ParseError::HeadTooLong => GatewayError::HeadTooLarge,
        Http1ParseError::TargetTooLong => GatewayError::UriTooLong,
        Http1ParseError::InvalidHead
        | Http1ParseError::InvalidBodyLength
        | Http1ParseError::InvalidChunks => GatewayError::BadHead,
    }
}

/// Reads the request heads of a connection, with timeouts.
struct HeadReader {
    /// The timer of the current wait. The key contains `heads_received`, and whether a part of the next head
    /// was read. A change of either starts a new timeout.
    timer: KeyedTimer<(u64, bool)>,
    /// Number of request heads that were read on the connection.
    heads_received: u64,
    shutdown: ShutdownSignal,
}

impl HeadReader {
    fn new(shutdown: ShutdownSignal) -> Self {
        Self {
            timer: KeyedTimer::new(),
            heads_received: 0,
            shutdown,
        }
    }

    /// Waits for the next request head. `head_timeout` applies to the first head, and to a later head from its
    /// first byte to its end. `keep_alive_timeout` applies to an idle connection between two requests. When
    /// that timeout expires or the gateway shuts down, the idle connection is closed without an error. Until
    /// the head is complete, a new connection can replace this one.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Http1Connection,
        limits: &ServerLimits,
    ) -> Poll<io::Result<HeadOutcome>> {
        let head_limits = HeadLimits {
            max_bytes: limits.max_head_bytes,
            max_headers: limits.max_headers,
        };
        if let Poll::Ready(outcome) = connection.poll_request_head(cx, head_limits) {
            self.heads_received += 1;
            self.timer.clear();
            return Poll::Ready(outcome);
        }
        let has_partial_head = connection.has_partial_head();
        let is_idle = self.heads_received > 0 && !has_partial_head;
        let key = (self.heads_received, has_partial_head);
        let timeout = if is_idle {
            limits.keep_alive_timeout
        } else {
            limits.head_timeout
        };
        let has_timed_out = self.timer.has_elapsed(key, timeout, cx);
        let close_reason = self.shutdown.poll(cx);
        if is_idle && (has_timed_out || close_reason.is_ready()) {
            return Poll::Ready(Ok(HeadOutcome::Closed));
        }
        if close_reason == Poll::Ready(CloseReason::Replaced) {
            return Poll::Ready(Ok(HeadOutcome::Replaced));
        }
        if has_timed_out {
            Poll::Ready(Err(ErrorKind::TimedOut.into()))
        } else {
            Poll::Pending
        }
    }
}

/// Writes a response to the connection. Initially, the write buffer contains the encoded head.
struct ResponseWriter {
    body: ProxyResponseBody,
    framing: ResponseFraming,
    /// Whether another request may follow on the connection.
    is_keep_alive: bool,
    /// The end of the body. An error: the body failed or does not have its declared length. `None`: the body
    /// has not ended.
    result: Option<io::Result<()>>,
}

impl ResponseWriter {
    fn start(
        context: &ConnectionContext,
        shared: &SharedHttp1Connection,
        request: RequestSummary,
        response: ProxyResponse,
    ) -> Self {
        let mut connection = shared.lock();
        let (head, body) = response.into_parts();
        let framing = ResponseFraming::for_response(&request, &head, body.size_hint().exact());
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            connection.begin_tunnel();
        }
        // While the gateway drains, the connection closes after this response, because a further request could
        // arrive just as the gateway closes the connection. If a request body that is forwarded unread is still
        // in use, `has_complete_request` must not be called, because it discards buffered parts of the body.
        let is_last = context.state.proxy.draining.get()
            || shared.is_body_in_use()
            || connection.has_discarded_input()
            || !connection.has_complete_request()
            || !framing.is_self_delimiting();
        let request = RequestSummary {
            is_keep_alive: request.is_keep_alive && !is_last,
            ..request
        };
        http1::encode_response_head(
            &request,
            &head,
            framing,
            clock::wall_time,
            connection.write_buffer.copied_mut(),
        );
        Self {
            body,
            framing,
            is_keep_alive: request.is_keep_alive,
            result: None,
        }
    }

    /// Writes the response until the body has ended and all bytes are written. Fails if the body fails, a write
    /// fails, or the client disconnects.
    ///
    /// The connection is not locked while the response body is polled, because the response body can read the
    /// request body from the connection.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        shared: &SharedHttp1Connection,
    ) -> Poll<io::Result<()>> {
        loop {
            let is_waiting = self.fill_buffer(cx, shared).is_pending();
            let mut connection = shared.lock();
            let is_written = connection.poll_flush(cx)?.is_ready();
            self.body.on_flush(is_written);
            match self.result.take_if(|_| is_written) {
                Some(result) => return Poll::Ready(result),
                None if is_written && !is_waiting => {}
                None => {
                    ready!(connection.poll_client_disconnect(cx));
                    return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
                }
            }
        }
    }

    /// Moves data from the body to the write buffer, until the buffer is full or the body has ended. Pending
    /// while the body has no more data.
    fn fill_buffer(&mut self, cx: &mut Context<'_>, shared: &SharedHttp1Connection) -> Poll<()> {
        if self.framing == ResponseFraming::NoBody {
            self.result = Some(Ok(()));
        }
        while self.result.is_none() && shared.lock().write_buffer.has_capacity() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers apply to one hop only, so they are not forwarded.
                    if let Ok(data) = frame.into_data() {
                        self.put_data(data, &mut shared.lock());
                    }
                }
                Some(Err(error)) => self.result = Some(Err(io::Error::other(error))),
                None => self.finish(&mut shared.lock()),
            }
        }
        Poll::Ready(())
    }

    /// Encodes body data into the write buffer. Data beyond the declared length is an error.
    fn put_data(&mut self, data: Bytes, connection: &mut Http1Connection) {
        match &mut self.framing {
            _ if data.is_empty() => {}
            ResponseFraming::Chunked => {
                http1::encode_chunk_size(data.len(), connection.write_buffer.copied_mut());
                connection.write_buffer.put_chunk(data, http1::CHUNK_END);
            }
            ResponseFraming::ContentLength(remaining) => {
                match remaining.checked_sub(data.len() as u64) {
                    Some(remaining_after) => {
                        *remaining = remaining_after;
                        connection.write_buffer.put_chunk(data, b"");
                    }
                    None => self.result = Some(Err(ErrorKind::InvalidData.into())),
                }
            }
            ResponseFraming::NoBody | ResponseFraming::UntilClose => {
                connection.write_buffer.put_chunk(data, b"");
            }
        }
    }

    /// Handles the end of the body: writes the last chunk of chunked framing, or fails if the body
    /// is shorter than declared.
    fn finish(&mut self, connection: &mut Http1Connection) {
        self.result = Some(match self.framing {
            ResponseFraming::ContentLength(1..) => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        });
        if self.framing == ResponseFraming::Chunked {
            connection.write_buffer.put_static(http1::LAST_CHUNK);
        }
    }
}

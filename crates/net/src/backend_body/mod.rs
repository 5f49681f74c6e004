//! Sends a request over a connection to a backend, and reads the body of the response.

use crate::connection::{Connection, ConnectionError, UnsentRequest, poll_read};
use crate::idle_pool::IdlePool;
use crate::request_stream::RequestStream;
use crate::send_error::SendError;
use bytes::{Buf, Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_protocol::http1::{self, RequestFraming, ResponseHead};
use tokio::time::{Sleep, sleep};

/// The response of a backend. Boxed, because each layer between its connection and the client moves it.
pub type BackendResponse = Box<Response<BackendBody>>;

/// The body of a backend's response. It reads from its connection. At the end of the body it
/// returns the connection to the idle pool. Dropping the body before its end closes the connection.
pub struct BackendBody {
    decoder: http1::BodyDecoder,
    /// Body bytes that were read together with the response head and are not yet decoded.
    prefetched: Bytes,
    /// The part of the request that is not yet written. `None`: the whole request is written.
    unsent_request: Option<Box<UnsentRequest>>,
    /// The connection to the backend. `None`: the body has ended, or reading failed.
    connection: Option<Box<Connection>>,
    /// Whether the connection may carry another request after this response.
    is_reusable: bool,
    idle_pool: IdlePool,
    /// Longest time without a part of the body. After it, reading fails. `None`: there is no limit.
    pub(crate) max_silence: Option<Duration>,
    /// The timer that ends `max_silence` after the last part. `None`: no read is waiting for a part.
    silence: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    /// Sends a request and waits for the response head. The response head may arrive before the
    /// whole request is written. `stream`: the body, if it is not in `request`.
    pub fn send(
        mut self: Box<Self>,
        request: Request<Bytes>,
        stream: Option<RequestStream>,
        idle: &IdlePool,
    ) -> impl Future<Output = Result<BackendResponse, SendError>> {
        let (parts, body) = request.into_parts();
        let framing = RequestFraming::Length(body.len() as u64);
        let framing = stream.as_ref().map_or(framing, |stream| stream.framing);
        let is_upgrade = framing == RequestFraming::Upgrade;
        // The bytes of a WebSocket client are sent only after the backend has accepted the upgrade.
        let (stream, upgraded) = if is_upgrade {
            (None, stream)
        } else {
            (stream, None)
        };
        let head = http1::encode_request_head(&parts, framing);
        let unsent = UnsentRequest::new(head, body, stream);
        let mut sending = Sending {
            unsent,
            // The future holds only the parts of the request that are needed after the head is encoded, to take
            // less memory.
            method: parts.method,
            is_upgrade,
            is_writing: true,
            is_written: false,
            received: BytesMut::new(),
        };
        async move {
            let head = poll_fn(|cx| sending.poll_head(cx, &mut self)).await;
            let ResponseHead {
                response,
                body,
                is_keep_alive,
                length,
            } = match head {
                Ok(head) => head,
                Err(error) => return Err(sending.failure(error, &self)),
            };
            sending.received.advance(length);
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                sending.unsent = UnsentRequest::new(Bytes::new(), Bytes::new(), upgraded);
            }
            let unsent = sending.unsent;
            let mut body = BackendBody {
                decoder: body,
                prefetched: sending.received.freeze(),
                unsent_request: (!unsent.is_written()).then(|| Box::new(unsent)),
                connection: Some(self),
                is_reusable: is_keep_alive,
                idle_pool: idle.clone(),
                max_silence: None,
                silence: None,
            };
            if body.decoder.is_complete() {
                body.finish();
            }
            Ok(Box::new(response.map(|()| body)))
        }
    }
}

/// A request whose response head has not arrived.
struct Sending {
    unsent: UnsentRequest,
    method: Method,
    is_upgrade: bool,
    /// Whether a part of the request is still to be written.
    is_writing: bool,
    /// Whether the whole request was written.
    is_written: bool,
    /// The bytes of the response so far.
    received: BytesMut,
}

impl Sending {
    /// Writes the request, and reads until the response head is complete.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        connection: &mut Connection,
    ) -> Poll<Result<ResponseHead, ConnectionError>> {
        if self.is_writing {
            match connection.poll_write_request(cx, &mut self.unsent) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => {
                    self.is_writing = false;
                    self.is_written = true;
                }
                Poll::Ready(Err(error @ ConnectionError::RequestBody(_))) => {
                    return Poll::Ready(Err(error));
                }
                // A backend that responds before it has read the whole request may close its reading side, so
                // that the write fails. The response head can still be read.
                Poll::Ready(Err(_)) => self.is_writing = false,
            }
        }
        connection.poll_response_head(cx, &self.method, self.is_upgrade, &mut self.received)
    }

    /// The error of a request without a response head.
    fn failure(&self, error: ConnectionError, connection: &Connection) -> SendError {
        match error {
            ConnectionError::Malformed(error) => SendError::InvalidResponse(error.to_string()),
            ConnectionError::RequestBody(error) => SendError::RequestBody(error),
            // The backend may have closed the idle connection before the request arrived. The delay until the
            // gateway sees the close depends on the network, so no time limit distinguishes this case.
            _ if connection.served_requests > 0 && self.received.is_empty() => {
                SendError::StaleConnection {
                    was_request_written: self.is_written,
                }
            }
            error => SendError::Closed(error.to_string()),
        }
    }
}

impl BackendBody {
    /// Ready with [`ConnectionError::Silent`] when no part of the body has come for `max_silence`. Pending
    /// while the request is not completely written, because the backend may then wait for the client.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        if self.unsent_request.is_some() {
            return Poll::Pending;
        }
        let Some(max_silence) = self.max_silence else {
            return Poll::Pending;
        };
        let silence = self
            .silence
            .get_or_insert_with(|| Box::pin(sleep(max_silence)));
        silence
            .as_mut()
            .poll(cx)
            .map(|()| ConnectionError::Silent(max_silence))
    }

    /// Ends the body. A reusable connection returns to the idle pool, and any other connection is closed.
    fn finish(&mut self) {
        let is_reusable =
            self.is_reusable && self.prefetched.is_empty() && self.unsent_request.is_none();
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        if is_reusable {
            connection.served_requests = connection.served_requests.saturating_add(1);
            connection.idle_since = clock::now();
            self.idle_pool.put(connection);
        }
    }

    /// Reads and decodes until a part of the body is available. `None`: the body has ended.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ConnectionError>> {
        let mut data = BytesMut::new();
        while !self.decoder.is_complete() {
            let prefetched = std::mem::take(&mut self.prefetched);
            let Some(connection) = &mut self.connection else {
                break;
            };
            if let Some(unsent) = &mut self.unsent_request
                && let Poll::Ready(Ok(()) | Err(ConnectionError::RequestBody(_))) =
                    connection.poll_write_request(cx, unsent)
            {
                // The server that reads the client's body handles its error and ends the response, so the error
                // is ignored here.
                self.is_reusable &= unsent.is_written();
                self.unsent_request = None;
            }
            let mut decoded = (0, Ok(0));
            let mut decode = |bytes: &[u8]| {
                data.reserve(bytes.len());
                decoded = (bytes.len(), self.decoder.decode(bytes, &mut data));
            };
            if prefetched.is_empty() {
                let count = ready!(poll_read(&mut connection.stream, cx, decode))?;
                if count == 0 {
                    return Poll::Ready(self.on_connection_closed());
                }
            } else {
                decode(&prefetched);
            }
            let (count, consumed) = decoded;
            // Bytes after the end of the response belong to no request, so the connection is not reusable.
            self.is_reusable &= consumed? == count;
            if !data.is_empty() {
                break;
            }
        }
        if self.decoder.is_complete() {
            self.finish();
        }
        Poll::Ready(Ok(Some(data.freeze()).filter(|data| !data.is_empty())))
    }

    /// Handles a close of the connection by the backend. The close ends a body without a stated length. Within
    /// any other body, it is an error.
    fn on_connection_closed(&mut self) -> Result<Option<Bytes>, ConnectionError> {
        self.connection = None;
        match self.decoder {
            http1::BodyDecoder::UntilClose => {
                self.decoder = http1::BodyDecoder::empty();
                Ok(None)
            }
            _ => Err(ConnectionError::Closed),
        }
    }
}

impl Body for BackendBody {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        let data = match self.poll_data(cx) {
            Poll::Ready(data) => {
                self.silence = None;
                data
            }
            Poll::Pending => Err(ready!(self.poll_silence(cx))),
        };
        match data {
            Ok(Some(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
            Ok(None) => Poll::Ready(
                self.decoder
                    .take_trailers()
                    .map(|map| Ok(Frame::trailers(map))),
            ),
            Err(error) => {
                self.connection = None;
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.decoder.is_complete() && !self.decoder.has_trailers()
    }

    fn size_hint(&self) -> SizeHint {
        self.decoder
            .remaining_bytes()
            .map(SizeHint::with_exact)
            .unwrap_or_default()
    }
}

impl std::fmt::Debug for BackendBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendBody")
            .field("body", &self.decoder)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

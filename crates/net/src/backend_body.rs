//! A request over a connection, and the body of its response.

use crate::connection::{Connection, ConnectionError, UnsentRequest};
use crate::idle_pool::IdlePool;
use crate::send_error::SendError;
use bytes::{Buf, Bytes, BytesMut};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::http1::{self, ResponseHead};

/// The body of a backend's response. It reads from its connection and returns the connection to the
/// pool at the end. Dropping it before the end closes the connection.
pub struct BackendBody {
    decoder: http1::BodyDecoder,
    /// Body bytes that were read together with the head.
    prefetched: Bytes,
    /// The rest of the request, if the backend began its response before it had read the request.
    unsent_request: Option<Box<UnsentRequest>>,
    /// `None` after the end of the body.
    connection: Option<Connection>,
    /// Whether the connection may carry another request.
    is_reusable: bool,
    idle_pool: IdlePool,
}

/// A close that is seen within this time after the request was written is treated as a race: it
/// crossed the request on the wire. A backend that reads, executes and then closes takes longer. A
/// later close is a failure of the request.
const CLOSE_RACE_WINDOW: Duration = Duration::from_millis(5);

impl Connection {
    /// Sends a request and waits for the response head. The head may arrive before the whole
    /// request is sent.
    pub async fn send(
        mut self,
        request: Request<Bytes>,
        idle: &IdlePool,
    ) -> Result<Response<BackendBody>, SendError> {
        let (parts, body) = request.into_parts();
        let mut unsent = http1::encode_request_head(&parts, body.len()).chain(body);
        let (mut is_writing, mut written_at, mut read) = (true, None, BytesMut::new());
        let head = poll_fn(|cx| {
            if is_writing {
                match self.poll_write_request(cx, &mut unsent) {
                    Poll::Pending => {}
                    Poll::Ready(Ok(())) => {
                        is_writing = false;
                        written_at = self.has_served_request.then(clock::now);
                    }
                    // A backend that responds before it has read the request may close its side.
                    Poll::Ready(Err(_)) => is_writing = false,
                }
            }
            self.poll_response_head(cx, &parts.method, &mut read)
        });
        let ResponseHead { response, body, is_keep_alive, length } = match head.await {
            Ok(head) => head,
            Err(ConnectionError::Malformed(error)) => {
                return Err(SendError::InvalidResponse(error.to_string()));
            }
            Err(error) => {
                let elapsed = written_at.map(|at| clock::now().saturating_duration_since(at));
                let is_race = elapsed.is_none_or(|elapsed| elapsed < CLOSE_RACE_WINDOW);
                if self.has_served_request && read.is_empty() && is_race {
                    return Err(SendError::StaleConnection {
                        was_request_written: written_at.is_some(),
                    });
                }
                return Err(SendError::Closed(error.to_string()));
            }
        };
        read.advance(length);
        let unsent = unsent.has_remaining().then(|| Box::new(unsent));
        let mut body = BackendBody {
            decoder: body,
            prefetched: read.freeze(),
            unsent_request: unsent,
            connection: Some(self),
            is_reusable: is_keep_alive,
            idle_pool: idle.clone(),
        };
        if body.decoder.is_complete() {
            body.finish();
        }
        Ok(response.map(|()| body))
    }
}

impl BackendBody {
    /// Ends the body and returns its connection to the pool if it is reusable.
    fn finish(&mut self) {
        let is_reusable =
            self.is_reusable && self.prefetched.is_empty() && self.unsent_request.is_none();
        let connection = self.connection.take().filter(|_| is_reusable);
        if let Some(mut connection) = connection {
            (connection.has_served_request, connection.idle_since) = (true, clock::now());
            self.idle_pool.put(connection);
        }
    }

    /// Reads until a part of the body is available. `None`: the body has ended.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, ConnectionError>> {
        let mut data = BytesMut::new();
        while !self.decoder.is_complete() {
            let prefetched = std::mem::take(&mut self.prefetched);
            let Some(connection) = &mut self.connection else { break };
            if let Some(unsent) = &mut self.unsent_request
                && let Poll::Ready(Ok(())) = connection.poll_write_request(cx, unsent)
            {
                self.unsent_request = None;
            }
            let mut decoded = (0, Ok(0));
            let mut decode = |bytes: &[u8]| {
                data.reserve(bytes.len());
                decoded = (bytes.len(), self.decoder.decode(bytes, &mut data));
            };
            if prefetched.is_empty() {
                let count = ready!(connection.poll_read(cx, decode))?;
                if count == 0 {
                    return Poll::Ready(self.on_connection_closed());
                }
            } else {
                decode(&prefetched);
            }
            let (received, consumed) = decoded;
            // Bytes after the end of the response belong to no request.
            self.is_reusable &= consumed? == received;
            if !data.is_empty() {
                break;
            }
        }
        if self.decoder.is_complete() {
            self.finish();
        }
        Poll::Ready(Ok(Some(data.freeze()).filter(|data| !data.is_empty())))
    }

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
        match ready!(self.poll_data(cx)) {
            Ok(Some(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
            Ok(None) => {
                Poll::Ready(self.decoder.take_trailers().map(|map| Ok(Frame::trailers(map))))
            }
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
        self.decoder.remaining_bytes().map(SizeHint::with_exact).unwrap_or_default()
    }
}

impl std::fmt::Debug for BackendBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendBody").field("body", &self.decoder).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "backend_body_tests.rs"]
mod tests;

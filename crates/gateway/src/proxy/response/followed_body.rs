//! The response body of a request whose client may return after a lost connection
//! (`streams.resume`). A separate task, the run, writes the response, and each connection of the
//! client reads it.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};
use std::task::{Context, Poll, ready};
use tokenweir_protocol::clock;
use tokenweir_request::observe::{Exchange, ObservedBodyError, ResponseAbortHandle};
use tokenweir_request::record::{Outcome, Termination};
use tokenweir_request::resume::{Chunk, End, EventIds, Reader};

/// The response head of a request to which the client can return after a lost connection.
#[derive(Debug)]
pub(crate) struct RunHead {
    pub(in crate::proxy) status: StatusCode,
    pub(in crate::proxy) headers: HeaderMap,
    /// The length of the body. `None`: the length is not known in advance.
    pub(in crate::proxy) length: Option<u64>,
}

/// The response body that one connection reads from the stored output of a run: a request to which
/// the client can return after a lost connection.
pub struct FollowedBody {
    reader: Reader<RunHead>,
    /// Adds event ids to the stream. `None`: the client did not ask for event ids.
    ids: Option<EventIds>,
    /// The exchange of this request, if it reads the response to an earlier request with the same
    /// `Idempotency-Key`. `None`: this request began the run, and the run has the exchange.
    exchange: Option<Exchange>,
    abort: ResponseAbortHandle,
    /// Number of bytes of the body that remain to be sent. `None`: unknown.
    remaining: Option<u64>,
    /// Whether the server had an opportunity to write buffered data before an error ends the body.
    is_flushed: bool,
}

impl FollowedBody {
    pub(in crate::proxy) fn new(
        reader: Reader<RunHead>,
        length: Option<u64>,
        ids: Option<EventIds>,
        exchange: Option<Exchange>,
        abort: ResponseAbortHandle,
    ) -> Self {
        let remaining = length.filter(|_| ids.is_none());
        Self { reader, ids, exchange, abort, remaining, is_flushed: false }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    pub(super) fn poll_frame<E>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ObservedBodyError<E>>>> {
        self.abort.on_drained();
        loop {
            match ready!(self.reader.poll_chunk(cx.waker())) {
                Chunk::Data(data) => {
                    let data = match &mut self.ids {
                        Some(ids) => Bytes::from(ids.add(&data)),
                        None => data,
                    };
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(self.forward(data))));
                    }
                }
                Chunk::End(End::Whole) => {
                    self.finish(Outcome::Ok, Termination::Complete);
                    return Poll::Ready(None);
                }
                Chunk::End(End::Broken) if self.is_flushed => {
                    self.finish(Outcome::Truncated, Termination::UpstreamReset);
                    return Poll::Ready(Some(Err(ObservedBodyError::Followed)));
                }
                Chunk::End(End::Broken) => {
                    // The server discards its buffer on an error, so it may write the buffer before.
                    self.is_flushed = true;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Completes the record of a request that reads the response to an earlier request.
    fn finish(&mut self, outcome: Outcome, end: Termination) {
        if let Some(mut exchange) = self.exchange.take() {
            let record = exchange.record();
            (record.outcome, record.end) = (outcome, end);
        }
    }

    fn forward(&mut self, data: Bytes) -> Frame<Bytes> {
        let length = data.len() as u64;
        self.remaining = self.remaining.map(|remaining| remaining.saturating_sub(length));
        if let Some(exchange) = &mut self.exchange {
            exchange.record().bytes_out += length;
        }
        self.abort.on_write(clock::now());
        Frame::data(data)
    }
}

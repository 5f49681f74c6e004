//! The response body of a request that continues without its connection. A separate task, the run, stores the
//! response, and each connection of the client reads it.

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::is_event_stream;
use tokenweir_request::observe::{Exchange, ObservedBodyError, ResponseAbortHandle};
use tokenweir_request::record::{Outcome, Termination};
use tokenweir_request::runs::{Chunk, End, EventIds, Reader, RunHead};

/// The response body that one connection reads from the stored output of a run. A run is a request to which the
/// client can return after a lost connection.
pub struct RunBody {
    reader: Reader,
    /// Adds event ids to the stream. `None`: the client did not ask for event ids.
    ids: Option<EventIds>,
    /// The first bytes for the client. They were read together with events that the client already has.
    first: Bytes,
    /// Aborts the connection if its client does not read.
    pub abort: ResponseAbortHandle,
    /// The exchange of this request, if it is a repetition that reads the response to an earlier request with
    /// the same `Idempotency-Key`. `None`: this request began the run, and the run has the exchange.
    exchange: Option<Exchange>,
    /// Number of bytes of the body that remain to be sent. `None`: unknown.
    remaining: Option<u64>,
    /// Whether the server had an opportunity to write buffered data before an error ends the body.
    is_flushed: bool,
}

impl RunBody {
    /// The body that `reader` reads. `ids`: adds event ids. `None`: the client asked for no event ids.
    pub fn new(reader: Reader, ids: Option<EventIds>, abort: ResponseAbortHandle) -> Self {
        let first = Bytes::new();
        Self {
            reader,
            ids,
            first,
            abort,
            exchange: None,
            remaining: None,
            is_flushed: false,
        }
    }

    /// The head of the response. `None`: the run ended without a response.
    pub async fn head(&mut self) -> Option<Arc<RunHead>> {
        poll_fn(|cx| self.reader.poll_head(cx.waker())).await
    }

    /// Skips the events that the client already has. The client got these events from this gateway, so the run
    /// must contain them. `false`: it does not, so they belong to another response.
    pub fn skip_events(&mut self, head: &RunHead) -> bool {
        let Self {
            reader,
            ids: Some(ids),
            first,
            ..
        } = self
        else {
            return true;
        };
        if !ids.has_skipped() && !is_event_stream(&head.headers) {
            return false;
        }
        while !ids.has_skipped() {
            let Poll::Ready(Chunk::Data(data)) = reader.poll_chunk(Waker::noop()) else {
                return false;
            };
            *first = ids.add(&data).into();
        }
        true
    }

    /// Begins the body of a response with this head. `exchange`: the exchange of a request that did not begin
    /// the run.
    pub fn begin(&mut self, head: &RunHead, exchange: Option<Exchange>) {
        if !is_event_stream(&head.headers) {
            self.ids = None;
        }
        self.exchange = exchange;
        self.remaining = if self.ids.is_none() {
            head.length
        } else {
            None
        };
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.remaining
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    pub(super) fn poll_frame<E>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ObservedBodyError<E>>>> {
        self.abort.on_drained();
        if !self.first.is_empty() {
            let first = std::mem::take(&mut self.first);
            return Poll::Ready(Some(Ok(self.forward(first))));
        }
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
                Chunk::End(End::Failed) => {
                    let status = self.exchange.as_mut().and_then(|it| it.record().status);
                    let outcome = match status {
                        Some(500..) => Outcome::UpstreamError,
                        Some(400..) => Outcome::ClientError,
                        _ => Outcome::StreamError,
                    };
                    self.finish(outcome, Termination::Complete);
                    return Poll::Ready(None);
                }
                Chunk::End(End::Broken) if self.is_flushed => {
                    self.finish(Outcome::Truncated, Termination::UpstreamReset);
                    return Poll::Ready(Some(Err(ObservedBodyError::Followed)));
                }
                Chunk::End(End::Broken) => {
                    // The server discards its buffer on an error, so the body first lets it write the buffer.
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
            record.outcome = outcome;
            record.end = end;
        }
    }

    fn forward(&mut self, data: Bytes) -> Frame<Bytes> {
        let length = data.len() as u64;
        self.remaining = self
            .remaining
            .map(|remaining| remaining.saturating_sub(length));
        if let Some(exchange) = &mut self.exchange {
            exchange.record().bytes_out += length;
        }
        self.abort.on_write(clock::now());
        Frame::data(data)
    }
}

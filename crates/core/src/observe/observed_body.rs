//! A response body that forwards the frames of a backend and passes each of them to its exchange.

use super::Exchange;
use crate::record::Termination;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of a response whose first frames have been read and passed to the exchange.
#[derive(Debug)]
pub struct PrefetchedBody<B: Body> {
    /// The frames that have been read and are to be forwarded.
    pub frames: VecDeque<Frame<Bytes>>,
    /// The end of the body, if it was read: `Ok`, or the error. `None`: the end has not been read.
    pub end: Option<Result<(), B::Error>>,
    /// The unread rest of the body.
    pub rest: B,
}

/// The body `B` with its exchange. The guard `T` lives as long as the body. It is dropped after the
/// exchange has passed its record to the receiver.
pub struct ObservedBody<B: Body, T> {
    prefetched: PrefetchedBody<B>,
    /// `None` once the exchange has ended.
    exchange: Option<Exchange>,
    /// The observer removes usage: frames can become shorter.
    is_filtering_usage: bool,
    /// Bytes can be added or removed, so the length is not known in advance.
    has_unknown_length: bool,
    /// The end of the body, which the next poll returns. The last poll returned the remaining data,
    /// or gave the server an opportunity to write buffered data.
    pending_end: Option<Result<(), ObservedBodyError<B::Error>>>,
    /// The server had an opportunity to write buffered data before an error.
    is_flushed: bool,
    _guard: T,
}

/// Why the gateway truncated a body.
#[derive(Debug, thiserror::Error)]
pub enum ObservedBodyError<E> {
    /// The backend's body failed, for example because its connection broke.
    #[error(transparent)]
    Backend(E),
    /// The first output, the next output or the end did not arrive before its timeout.
    #[error("the backend sent no output in time; the gateway aborted the stream")]
    Stalled,
    /// The run whose response the body follows was broken.
    #[error("the response that this one follows was broken")]
    Followed,
}

type FramePoll<E> = Poll<Option<Result<Frame<Bytes>, ObservedBodyError<E>>>>;

// === impl PrefetchedBody ===

impl<B: Body> PrefetchedBody<B> {
    /// A body of which nothing has been read.
    pub fn new(rest: B) -> Self {
        Self { frames: VecDeque::new(), end: None, rest }
    }

    /// Whether the body is known to be at its end without another poll.
    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.end.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.frames.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64);
        let (read, unread) = (read.sum::<u64>(), self.rest.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(read + unread.lower());
        if let Some(upper) = unread.upper() {
            hint.set_upper(read + upper);
        }
        hint
    }
}

// === impl ObservedBody ===

impl<B: Body, T> ObservedBody<B, T> {
    /// Forwards `prefetched` and the rest of its body, observed by `exchange`.
    pub fn new(prefetched: PrefetchedBody<B>, exchange: Exchange, guard: T) -> Self {
        let is_filtering_usage = exchange.is_filtering_usage();
        let has_unknown_length = exchange.may_change_length();
        let mut body = Self {
            prefetched,
            exchange: Some(exchange),
            is_filtering_usage,
            has_unknown_length,
            pending_end: None,
            is_flushed: false,
            _guard: guard,
        };
        // hyper, which serves HTTP/2, does not poll a body that is empty from the start.
        if body.prefetched.is_end_stream() {
            body.finish_exchange();
        }
        body
    }

    /// Records that the server flushed the client's connection after it took frames of this body.
    /// `is_complete`: all of their bytes are written.
    pub fn on_flush(&mut self, is_complete: bool) {
        if let Some(exchange) = &mut self.exchange {
            exchange.on_flush(is_complete);
        }
    }

    /// Ends the exchange when the backend's body has ended and no bytes are held back.
    fn finish_exchange(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            exchange.end(Termination::Complete);
        }
    }

    /// Ends the exchange with `termination` and the body with `result`. Bytes that were held back
    /// are forwarded before the end. Before an error the server gets an opportunity to write its
    /// buffer, because it discards the buffer on an error.
    fn terminate(
        &mut self,
        termination: Termination,
        result: Result<(), ObservedBodyError<B::Error>>,
        cx: &Context<'_>,
    ) -> FramePoll<B::Error> {
        let last_data = self.exchange.take().map(|mut exchange| {
            if termination == Termination::Complete {
                // The end can complete the last event, which the usage filter holds back.
                exchange.on_end();
            }
            let held = exchange.flush();
            let error_event = exchange.truncation_event(termination).filter(|_| result.is_err());
            exchange.end(termination);
            if held.is_empty() { error_event.unwrap_or_default() } else { held }
        });
        match last_data.filter(|data| !data.is_empty()) {
            Some(data) => {
                self.pending_end = Some(result);
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            None => self.poll_end(result, cx),
        }
    }

    fn poll_end(
        &mut self,
        result: Result<(), ObservedBodyError<B::Error>>,
        cx: &Context<'_>,
    ) -> FramePoll<B::Error> {
        if result.is_err() && !self.is_flushed {
            self.is_flushed = true;
            self.pending_end = Some(result);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(result.err().map(Err))
    }

    /// Passes a frame to the exchange and returns the frame to forward. `None`: the usage filter
    /// removed all of its bytes or holds them back.
    fn forward_frame(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let Some(exchange) = &mut self.exchange else { return Some(frame) };
        let frame = match frame.into_data() {
            Ok(data) => Frame::data(exchange.on_data(data)),
            Err(trailers) => trailers,
        };
        let is_empty = frame.data_ref().is_some_and(Bytes::is_empty);
        (!is_empty || !self.is_filtering_usage).then_some(frame)
    }
}

impl<B, T> Body for ObservedBody<B, T>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Unpin,
    T: Unpin,
{
    type Data = Bytes;
    type Error = ObservedBodyError<B::Error>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll<B::Error> {
        let this = self.get_mut();
        if let Some(result) = this.pending_end.take() {
            return this.poll_end(result, cx);
        }
        if let Some(frame) = this.prefetched.frames.pop_front() {
            if this.prefetched.is_end_stream() && !this.is_filtering_usage {
                this.finish_exchange();
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        match this.prefetched.end.take() {
            Some(Ok(())) => return this.terminate(Termination::Complete, Ok(()), cx),
            Some(Err(error)) => {
                let result = Err(ObservedBodyError::Backend(error));
                return this.terminate(Termination::UpstreamReset, result, cx);
            }
            None => {}
        }
        loop {
            // This includes the time after a frame that was held back, because the client has no
            // data to read.
            if let Some(exchange) = &mut this.exchange {
                exchange.on_client_poll();
            }
            match Pin::new(&mut this.prefetched.rest).poll_frame(cx) {
                Poll::Pending => {
                    if let Some(comment) =
                        this.exchange.as_ref().and_then(Exchange::take_keep_alive_comment)
                    {
                        return Poll::Ready(Some(Ok(Frame::data(comment))));
                    }
                    let exchange = this.exchange.as_ref();
                    let reason = exchange.and_then(|exchange| exchange.abort_reason(cx.waker()));
                    let Some(termination) = reason else { return Poll::Pending };
                    return this.terminate(termination, Err(ObservedBodyError::Stalled), cx);
                }
                Poll::Ready(None) => return this.terminate(Termination::Complete, Ok(()), cx),
                Poll::Ready(Some(Err(error))) => {
                    return this.terminate(
                        Termination::UpstreamReset,
                        Err(ObservedBodyError::Backend(error)),
                        cx,
                    );
                }
                Poll::Ready(Some(Ok(frame))) => {
                    let frame = this.forward_frame(frame);
                    // The exchange ends with the last frame, because hyper may not poll again.
                    if this.prefetched.is_end_stream() && !this.is_filtering_usage {
                        this.finish_exchange();
                    }
                    if let Some(frame) = frame {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.pending_end {
            Some(result) => result.is_ok(),
            // Bytes that are held back may still have to be forwarded.
            None if self.is_filtering_usage => self.exchange.is_none(),
            None => self.prefetched.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.has_unknown_length { SizeHint::default() } else { self.prefetched.size_hint() }
    }
}

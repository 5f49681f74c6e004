//! A response body that forwards the frames of a backend and passes each of them to its exchange.

use super::exchange::Exchange;
use super::replacement::{Continue, Replaced, Replacement};
use super::stream_end::{Cut, Ending, LeaveReason, ObservedBodyError, termination};
use crate::record::Termination;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body of a response whose first frames have been read and passed to the exchange.
#[derive(Debug)]
pub struct PrefetchedBody<B: Body> {
    /// The frames that have been read and are to be forwarded.
    pub frames: VecDeque<Frame<Bytes>>,
    /// The end of the body, if it was read: `Ok`, or the error. `None`: the end has not been read.
    pub end: Option<Result<(), B::Error>>,
    /// The part of the body that has not been read.
    pub rest: B,
}

/// The body `B` with its exchange. The guard `T` lives as long as the body. It is dropped after the
/// exchange has passed its record to the receiver.
pub struct ObservedBody<B: Body, T> {
    prefetched: PrefetchedBody<B>,
    /// The exchange of the body. `None`: the exchange has ended.
    exchange: Option<Exchange>,
    /// Whether a forwarded frame can be shorter than the frame of the backend.
    may_shorten_frames: bool,
    /// Whether bytes can be added or removed, so that the length is not known in advance.
    has_unknown_length: bool,
    /// The end of the body, for the next poll. The previous poll returned the remaining data, or gave the
    /// server an opportunity to write buffered data.
    pending_end: Option<Ending<B::Error>>,
    /// Whether the server had an opportunity to write buffered data before an error ends the body.
    is_flushed: bool,
    /// Replaces the body if its backend cannot complete it. `None`: the body is never replaced.
    replacement: Option<Box<Replacement<B, T>>>,
    guard: T,
}

/// The result of polling the response.
enum Next<E> {
    /// A frame to forward. `None`: all of its bytes were removed or are held back.
    Frame(Option<Frame<Bytes>>),
    /// The stream should leave its backend for this reason.
    Leave(LeaveReason),
    /// The response ends, unless a stage holds its end.
    End(Ending<E>),
    /// The response ends after these bytes.
    Finish(Bytes, Ending<E>),
}

type FramePoll<E> = Poll<Option<Result<Frame<Bytes>, ObservedBodyError<E>>>>;

impl<B: Body> PrefetchedBody<B> {
    /// A body that has not been read yet.
    pub fn new(rest: B) -> Self {
        Self {
            frames: VecDeque::new(),
            end: None,
            rest,
        }
    }

    fn take_frame(&mut self) -> Option<Frame<Bytes>> {
        let frame = self.frames.pop_front()?;
        if self.frames.is_empty() {
            self.frames = VecDeque::new(); // frees its memory for the rest of the stream
        }
        Some(frame)
    }

    /// Whether the body is known to have ended, without another poll.
    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.end.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let data = self.frames.iter().filter_map(Frame::data_ref);
        let read: u64 = data.map(|data| data.len() as u64).sum();
        let unread = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(read + unread.lower());
        if let Some(upper) = unread.upper() {
            hint.set_upper(read + upper);
        }
        hint
    }
}

impl<B: Body, T> ObservedBody<B, T> {
    /// Forwards `prefetched` and the rest of its body, observed by `exchange`.
    pub fn new(prefetched: PrefetchedBody<B>, exchange: Exchange, guard: T) -> Self {
        let may_shorten_frames = exchange.may_shorten_frames();
        let has_unknown_length = exchange.may_change_length();
        let mut body = Self {
            prefetched,
            exchange: Some(exchange),
            may_shorten_frames,
            has_unknown_length,
            pending_end: None,
            is_flushed: false,
            replacement: None,
            guard,
        };
        // In HTTP/2, hyper does not poll a body that is empty from the start.
        body.end_with_last_frame();
        body
    }

    /// Lets `source` replace the body if its backend cannot complete it.
    pub fn set_replacement(&mut self, source: Option<Box<dyn Continue<B, T> + Send>>) {
        self.replacement = source.map(|source| Box::new(Replacement::new(source)));
    }

    /// Records that the server flushed the client's connection after it took frames of this body.
    /// `is_complete`: all of their bytes are written.
    pub fn on_flush(&mut self, is_complete: bool) {
        if let Some(exchange) = &mut self.exchange {
            exchange.on_flush(is_complete);
        }
    }

    /// Polls for another body while the end of the response is held.
    fn poll_replacement(&mut self, cx: &mut Context<'_>) -> Option<Poll<Next<B::Error>>> {
        let exchange = self.exchange.as_mut()?;
        let polled = self
            .replacement
            .as_mut()?
            .poll(cx, exchange, &mut self.guard)?;
        let Poll::Ready(replaced) = polled else {
            return Some(Poll::Pending);
        };
        let next = match replaced {
            Replaced::Body(body) => {
                self.prefetched = PrefetchedBody::new(body);
                return None;
            }
            Replaced::Refused {
                data,
                ending: Some(ending),
            } => Next::Finish(data, ending),
            Replaced::Refused { data, ending: None } if data.is_empty() => return None,
            Replaced::Refused { data, ending: None } => Next::Frame(Some(Frame::data(data))),
        };
        Some(Poll::Ready(next))
    }

    /// Polls the gateway's own actions while nothing arrives: sending a comment, or interrupting the stream.
    fn poll_waiting(&self, cx: &Context<'_>) -> Poll<Next<B::Error>> {
        let Some(exchange) = &self.exchange else {
            return Poll::Pending;
        };
        if let Some(comment) = exchange.take_keep_alive_comment() {
            return Poll::Ready(Next::Frame(Some(Frame::data(comment))));
        }
        let Some(cut) = exchange.cut(cx.waker()) else {
            return Poll::Pending;
        };
        let is_held = self
            .replacement
            .as_ref()
            .is_some_and(|stage| stage.is_holding());
        // While the response waits for another body, a fault of its former backend no longer matters.
        if is_held && cut.is_about_backend() {
            return Poll::Pending;
        }
        Poll::Ready(match cut {
            Cut::End(error) => Next::End(Err(error)),
            Cut::Leave(reason) => Next::Leave(reason),
        })
    }

    /// Passes a frame to the exchange and returns the frame to forward. `None`: all of its bytes were
    /// removed or are held back.
    fn observe(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let Some(exchange) = &mut self.exchange else {
            return Some(frame);
        };
        let frame = match frame.into_data() {
            Ok(data) => Frame::data(exchange.on_data(data)),
            Err(trailers) => trailers,
        };
        if let Some(replacement) = &mut self.replacement {
            replacement.on_data(exchange);
        }
        self.end_with_last_frame();
        let is_empty = frame.data_ref().is_some_and(Bytes::is_empty);
        (!is_empty || !self.may_shorten_frames).then_some(frame)
    }

    /// Ends the exchange if the body is at its end, because hyper may not poll it again after its last frame.
    fn end_with_last_frame(&mut self) {
        if self.prefetched.is_end_stream()
            && !self.may_shorten_frames
            && let Some(mut exchange) = self.exchange.take()
        {
            if exchange.ends_inside_event() {
                self.pending_end = Some(Err(ObservedBodyError::InsideEvent));
            }
            exchange.end(Termination::Complete);
        }
    }

    fn leave(&mut self, reason: LeaveReason) {
        if let (Some(replacement), Some(exchange)) = (&mut self.replacement, &self.exchange) {
            replacement.on_leave(exchange, reason);
        }
    }

    /// Returns the end of the response. `None`: a stage holds it.
    fn hold(&mut self, ending: Ending<B::Error>) -> Option<Ending<B::Error>> {
        match (&mut self.replacement, &self.exchange) {
            (Some(replacement), Some(exchange)) => replacement.on_end(exchange, ending),
            _ => Some(ending),
        }
    }

    /// Ends the exchange and the body. The client gets `before`, and the bytes that were held back. Before an
    /// error, the server gets an opportunity to write its buffer, which it would discard.
    fn finish(
        &mut self,
        before: Bytes,
        mut ending: Ending<B::Error>,
        cx: &Context<'_>,
    ) -> FramePoll<B::Error> {
        let mut last = Bytes::new();
        if let Some(mut exchange) = self.exchange.take() {
            // A backend may become silent after the last event.
            if exchange.has_last_event()
                && ending.as_ref().is_err_and(ObservedBodyError::is_silence)
            {
                ending = Ok(());
            }
            // A client would take a regular end for the end of the answer.
            if ending.is_ok() && exchange.ends_inside_event() {
                ending = Err(ObservedBodyError::InsideEvent);
            }
            last = exchange.finish(before, termination(&ending));
        }
        if last.is_empty() {
            return self.poll_end(ending, cx);
        }
        self.pending_end = Some(ending);
        Poll::Ready(Some(Ok(Frame::data(last))))
    }

    fn poll_end(&mut self, ending: Ending<B::Error>, cx: &Context<'_>) -> FramePoll<B::Error> {
        if ending.is_err() && !self.is_flushed {
            self.is_flushed = true;
            self.pending_end = Some(ending);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(ending.err().map(Err))
    }
}

impl<B, T> ObservedBody<B, T>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Polls for the next frame of the response, or for its end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next<B::Error>> {
        if let Some(frame) = self.prefetched.take_frame() {
            self.end_with_last_frame();
            return Poll::Ready(Next::Frame(Some(frame)));
        }
        if let Some(end) = self.prefetched.end.take() {
            return Poll::Ready(Next::End(end.map_err(ObservedBodyError::Backend)));
        }
        if let Some(next) = self.poll_replacement(cx) {
            return next;
        }
        // The time after a held frame counts too, because the client has no data to read.
        if let Some(exchange) = &mut self.exchange {
            exchange.on_client_poll();
        }
        Poll::Ready(
            match ready!(Pin::new(&mut self.prefetched.rest).poll_frame(cx)) {
                Some(Ok(frame)) => Next::Frame(self.observe(frame)),
                Some(Err(error)) => Next::End(Err(ObservedBodyError::Backend(error))),
                None => Next::End(Ok(())),
            },
        )
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
        if let Some(ending) = this.pending_end.take() {
            return this.poll_end(ending, cx);
        }
        loop {
            let next = match this.poll_next(cx) {
                Poll::Ready(next) => next,
                Poll::Pending => ready!(this.poll_waiting(cx)),
            };
            match next {
                Next::Frame(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Next::Frame(None) => {}
                Next::Leave(reason) => this.leave(reason),
                Next::End(ending) => {
                    if let Some(ending) = this.hold(ending) {
                        return this.finish(Bytes::new(), ending, cx);
                    }
                }
                Next::Finish(before, ending) => return this.finish(before, ending, cx),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.pending_end {
            Some(result) => result.is_ok(),
            // The gateway may still have to forward held bytes.
            None if self.may_shorten_frames => self.exchange.is_none(),
            None => self.prefetched.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.has_unknown_length {
            SizeHint::default()
        } else {
            self.prefetched.size_hint()
        }
    }
}

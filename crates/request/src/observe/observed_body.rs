//! A response body that forwards the frames of a backend and passes each of them to its exchange.

use super::continuer::{Continue, Interrupted};
use super::exchange::Exchange;
use super::stream_end::{Cut, EarlyEnd};
use crate::continuation::InterruptionCause;
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
    /// The exchange of the body. `None`: the exchange has ended.
    exchange: Option<Exchange>,
    /// Whether a forwarded frame can be shorter than the frame of the backend.
    may_shorten_frames: bool,
    /// Whether bytes can be added or removed, so that the length is not known in advance.
    has_unknown_length: bool,
    /// The end of the body, which the next poll returns. The previous poll returned the remaining data,
    /// or gave the server an opportunity to write buffered data.
    pending_end: Option<Result<(), ObservedBodyError<B::Error>>>,
    /// Whether the server had an opportunity to write buffered data before an error ends the body.
    is_flushed: bool,
    /// Continues the response at another backend. `None`: the response is not continued.
    continuation: Option<Box<BodyContinuation<B, T>>>,
    guard: T,
}

struct BodyContinuation<B: Body, T> {
    continuer: Box<dyn Continue<B, T> + Send>,
    /// The interruption for which a continuation at another backend is awaited. `None`: the response is
    /// not interrupted.
    interrupted: Option<(InterruptionCause, EarlyEnd<B::Error>)>,
}

/// Why the gateway truncated a body.
#[derive(Debug, thiserror::Error)]
pub enum ObservedBodyError<E> {
    /// The backend's body failed, for example because its connection broke.
    #[error(transparent)]
    Backend(E),
    /// The gateway ended the stream: the backend was too slow, the total timeout expired, the API key of
    /// the client was removed, or the gateway shuts down.
    #[error("the gateway aborted the stream: a timeout, a removed API key or its shutdown")]
    Stalled,
    /// The body forwards the response of a request with an `Idempotency-Key` to one of its
    /// connections. That response ended early, or it is an error although the gateway had already
    /// begun a JSON body.
    #[error("the forwarded response ended early, or is an error although its body had begun")]
    Followed,
    /// The backend is down and sent nothing.
    #[error("the backend is down and sent nothing")]
    Lost,
    /// The stream was interrupted, and no other backend continued it.
    #[error("the stream was interrupted, and no other backend continued it")]
    NotContinued,
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
        let may_shorten_frames = exchange.may_shorten_frames();
        let has_unknown_length = exchange.may_change_length();
        let mut body = Self {
            prefetched,
            exchange: Some(exchange),
            may_shorten_frames,
            has_unknown_length,
            pending_end: None,
            is_flushed: false,
            continuation: None,
            guard,
        };
        // hyper, which serves HTTP/2, does not poll a body that is empty from the start.
        if body.prefetched.is_end_stream() && !may_shorten_frames {
            body.finish_exchange();
        }
        body
    }

    /// Lets `continuer` continue the response if its backend cannot complete it.
    #[must_use]
    pub fn with_continuation(mut self, continuer: Option<Box<dyn Continue<B, T> + Send>>) -> Self {
        self.continuation =
            continuer.map(|continuer| Box::new(BodyContinuation { continuer, interrupted: None }));
        self
    }

    /// Handles an early end of the body. Returns the last frame, or `None` if the stream is to be
    /// continued.
    fn on_early_end(
        &mut self,
        end: EarlyEnd<B::Error>,
        cx: &Context<'_>,
    ) -> Option<FramePoll<B::Error>> {
        let (Some(continuation), Some(exchange)) = (&mut self.continuation, &self.exchange) else {
            return self.end_early(end, cx);
        };
        if let Some(cause) = exchange.interruption(&end) {
            continuation.interrupted = Some((cause, end));
            return None;
        }
        let end = match end {
            // The last event has arrived, so the response is complete although the body had no
            // regular end.
            EarlyEnd::Body(_) if exchange.has_last_event() => EarlyEnd::Body(Ok(())),
            end => end,
        };
        self.end_early(end, cx)
    }

    /// Ends the body. Returns its last frame or its end. `None`: the body goes on after `end`,
    /// which is [`EarlyEnd::Events`] or [`EarlyEnd::Move`].
    fn end_early(
        &mut self,
        end: EarlyEnd<B::Error>,
        cx: &Context<'_>,
    ) -> Option<FramePoll<B::Error>> {
        let has_last_event = self.exchange.as_ref().is_some_and(Exchange::has_last_event);
        let (termination, result) = match end {
            EarlyEnd::Body(Ok(())) => (Termination::Complete, Ok(())),
            EarlyEnd::Stall | EarlyEnd::Lost if has_last_event => (Termination::Complete, Ok(())),
            EarlyEnd::Body(Err(error)) => {
                (Termination::UpstreamReset, Err(ObservedBodyError::Backend(error)))
            }
            EarlyEnd::Stall => (Termination::IdleTimeout, Err(ObservedBodyError::Stalled)),
            EarlyEnd::Lost => (Termination::UpstreamReset, Err(ObservedBodyError::Lost)),
            EarlyEnd::Events | EarlyEnd::Move(_) => return None,
        };
        Some(self.terminate(termination, result, cx))
    }

    /// Polls for the backend that continues the response. `None`: no interruption is pending.
    fn poll_continuation(&mut self, cx: &mut Context<'_>) -> Option<FramePoll<B::Error>> {
        let (continuation, exchange) = (self.continuation.as_mut()?, self.exchange.as_mut()?);
        let (cause, end) = continuation.interrupted.as_ref()?;
        let cause = *cause;
        let interrupted = Interrupted {
            cause,
            is_final: !matches!(end, EarlyEnd::Move(_)),
            ended_in_order: matches!(end, EarlyEnd::Body(Ok(()))),
        };
        match continuation.continuer.poll_continue(cx, exchange, &mut self.guard, interrupted) {
            Poll::Pending => {
                if let Some(comment) = exchange.take_keep_alive_comment() {
                    return Some(Poll::Ready(Some(Ok(Frame::data(comment)))));
                }
                match exchange.cut(cx.waker()) {
                    Some(Cut::End(termination)) if termination != Termination::IdleTimeout => {
                        Some(self.terminate(termination, Err(ObservedBodyError::Stalled), cx))
                    }
                    _ => Some(Poll::Pending),
                }
            }
            Poll::Ready(Some(body)) => {
                self.prefetched = PrefetchedBody::new(body);
                continuation.interrupted = None;
                None
            }
            Poll::Ready(None) => {
                let (_, end) = continuation.interrupted.take()?;
                if cause == InterruptionCause::Diverged {
                    let result = Err(ObservedBodyError::NotContinued);
                    return Some(self.terminate(Termination::UpstreamReset, result, cx));
                }
                let held = exchange.release_events();
                let is_complete = exchange.has_last_event();
                let end = if is_complete { EarlyEnd::Body(Ok(())) } else { end };
                if held.is_empty() {
                    // The regular end of a later backend would hide that an earlier one broke the stream.
                    if interrupted.ended_in_order && !is_complete && exchange.is_continued() {
                        let result = Err(ObservedBodyError::NotContinued);
                        return Some(self.terminate(Termination::UpstreamReset, result, cx));
                    }
                    return self.end_early(end, cx);
                }
                if !matches!(end, EarlyEnd::Events | EarlyEnd::Move(_)) {
                    self.continuation = None;
                    self.prefetched.end = match end {
                        EarlyEnd::Body(result) => Some(result),
                        _ => None,
                    };
                }
                Some(Poll::Ready(Some(Ok(Frame::data(held)))))
            }
        }
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
            let mut partial = Bytes::new();
            if termination == Termination::Complete {
                partial = exchange.take_partial_event();
                // The end can complete the last event, which the usage filter holds back.
                exchange.on_end();
            }
            let held = exchange.flush();
            let error_event = exchange.truncation_event(termination).filter(|_| result.is_err());
            exchange.end(termination);
            let last = if held.is_empty() { error_event.unwrap_or_default() } else { held };
            if partial.is_empty() { last } else { [partial, last].concat().into() }
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
        (!is_empty || !self.may_shorten_frames).then_some(frame)
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
        loop {
            if this.continuation.is_some()
                && let Some(poll) = this.poll_continuation(cx)
            {
                return poll;
            }
            if let Some(frame) = this.prefetched.frames.pop_front() {
                if this.prefetched.frames.is_empty() {
                    this.prefetched.frames = VecDeque::new(); // frees its memory for the rest of the stream
                }
                if this.prefetched.is_end_stream() && !this.may_shorten_frames {
                    this.finish_exchange();
                }
                return Poll::Ready(Some(Ok(frame)));
            }
            if let Some(end) = this.prefetched.end.take() {
                match this.on_early_end(EarlyEnd::Body(end), cx) {
                    Some(poll) => return poll,
                    None => continue,
                }
            }
            // This includes the time after a frame that was held back, because the client has no
            // data to read.
            if let Some(exchange) = &mut this.exchange {
                exchange.on_client_poll();
            }
            let end = match Pin::new(&mut this.prefetched.rest).poll_frame(cx) {
                Poll::Pending => {
                    let Some(exchange) = &this.exchange else { return Poll::Pending };
                    if let Some(comment) = exchange.take_keep_alive_comment() {
                        return Poll::Ready(Some(Ok(Frame::data(comment))));
                    }
                    match exchange.cut(cx.waker()) {
                        None => return Poll::Pending,
                        Some(Cut::Move(cause)) => EarlyEnd::Move(cause),
                        Some(Cut::Lost) => EarlyEnd::Lost,
                        Some(Cut::End(Termination::IdleTimeout)) => EarlyEnd::Stall,
                        Some(Cut::End(termination)) => {
                            let result = Err(ObservedBodyError::Stalled);
                            return this.terminate(termination, result, cx);
                        }
                    }
                }
                Poll::Ready(None) => EarlyEnd::Body(Ok(())),
                Poll::Ready(Some(Err(error))) => EarlyEnd::Body(Err(error)),
                Poll::Ready(Some(Ok(frame))) => {
                    let frame = this.forward_frame(frame);
                    // The exchange ends with the last frame, because hyper may not poll again.
                    if this.prefetched.is_end_stream() && !this.may_shorten_frames {
                        this.finish_exchange();
                    }
                    let ended = if this.continuation.is_some() {
                        this.on_early_end(EarlyEnd::Events, cx)
                    } else {
                        None
                    };
                    match frame {
                        Some(frame) => return Poll::Ready(Some(Ok(frame))),
                        None if ended.is_none() => continue,
                        None => return ended.unwrap_or(Poll::Pending),
                    }
                }
            };
            if let Some(poll) = this.on_early_end(end, cx) {
                return poll;
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.pending_end {
            Some(result) => result.is_ok(),
            // Bytes that are held back may still have to be forwarded.
            None if self.may_shorten_frames => self.exchange.is_none(),
            None => self.prefetched.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.has_unknown_length { SizeHint::default() } else { self.prefetched.size_hint() }
    }
}

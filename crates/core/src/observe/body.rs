//! A response body that forwards the frames it receives and shows them to its exchange. What must
//! live as long as the answer travels inside it.

use super::Exchange;
use crate::record::End;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A body of which the beginning has been read, and shown to its exchange.
#[derive(Debug)]
pub struct Begun<B: Body> {
    /// What of the beginning goes on.
    pub frames: VecDeque<Frame<Bytes>>,
    /// How it ended, if it has.
    pub end: Option<Result<(), B::Error>>,
    /// The rest.
    pub rest: B,
}

/// The body `B`, observed. `held` is dropped with it, after the exchange has reported.
pub struct ObservedBody<B: Body, T> {
    begun: Begun<B>,
    /// `None` once the exchange has ended.
    exchange: Option<Exchange>,
    /// The frames may become shorter.
    is_stripping: bool,
    /// Bytes may be added or removed: the length is not known in advance.
    has_open_length: bool,
    /// How it ends, when there is something to be done before it says so.
    end: Option<Result<(), BodyError<B::Error>>>,
    /// The server has had the time to write what it has.
    is_flushed: bool,
    _held: T,
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub enum BodyError<E> {
    /// The replica's body did.
    #[error(transparent)]
    Replica(E),
    /// It was silent for too long.
    #[error("the replica was silent for too long")]
    Stalled,
}

type Polled<E> = Poll<Option<Result<Frame<Bytes>, BodyError<E>>>>;

// === impl Begun ===

impl<B: Body> Begun<B> {
    /// A body of which nothing has been read.
    pub fn new(rest: B) -> Self {
        Self { frames: VecDeque::new(), end: None, rest }
    }

    /// Nothing more comes, which a server knows without asking for it.
    fn is_over(&self) -> bool {
        self.frames.is_empty() && self.end.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.frames.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64);
        let (read, rest) = (read.sum::<u64>(), self.rest.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(read + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(read + upper);
        }
        hint
    }
}

// === impl ObservedBody ===

impl<B: Body, T> ObservedBody<B, T> {
    /// Observes what is left of a body for `exchange`.
    pub fn new(begun: Begun<B>, exchange: Exchange, held: T) -> Self {
        let is_stripping = exchange.is_stripping();
        let has_open_length = exchange.may_change_length();
        let mut body = Self {
            begun,
            exchange: Some(exchange),
            is_stripping,
            has_open_length,
            end: None,
            is_flushed: false,
            _held: held,
        };
        // hyper, which serves HTTP/2, does not poll a body that is empty from the start.
        if body.begun.is_over() {
            body.end_whole();
        }
        body
    }

    /// The replica's body is over, and nothing was kept back.
    fn end_whole(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            exchange.end(End::Whole);
        }
    }

    /// The replica's body is over. What was kept back goes on first, and before an error the
    /// server gets the time to write what it has: it throws that away when it hears of the error.
    fn end(
        &mut self,
        end: End,
        result: Result<(), BodyError<B::Error>>,
        cx: &Context<'_>,
    ) -> Polled<B::Error> {
        let rest = self.exchange.take().map(|mut exchange| {
            let rest = exchange.flush();
            let last_words = exchange.last_words().filter(|_| result.is_err());
            exchange.end(end);
            if rest.is_empty() { last_words.unwrap_or_default() } else { rest }
        });
        match rest.filter(|rest| !rest.is_empty()) {
            Some(rest) => {
                self.end = Some(result);
                Poll::Ready(Some(Ok(Frame::data(rest))))
            }
            None => self.close(result, cx),
        }
    }

    fn close(
        &mut self,
        result: Result<(), BodyError<B::Error>>,
        cx: &Context<'_>,
    ) -> Polled<B::Error> {
        if result.is_err() && !self.is_flushed {
            self.is_flushed = true;
            self.end = Some(result);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(result.err().map(Err))
    }

    /// A frame came. `None`: nothing of it goes on yet.
    fn forward(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let Some(exchange) = &mut self.exchange else { return Some(frame) };
        let frame = match frame.into_data() {
            Ok(data) => Frame::data(exchange.on_data(data)),
            Err(trailers) => trailers,
        };
        let is_nothing = frame.data_ref().is_some_and(Bytes::is_empty);
        (!is_nothing || !self.is_stripping).then_some(frame)
    }
}

impl<B, T> Body for ObservedBody<B, T>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Unpin,
    T: Unpin,
{
    type Data = Bytes;
    type Error = BodyError<B::Error>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled<B::Error> {
        let this = self.get_mut();
        if let Some(result) = this.end.take() {
            return this.close(result, cx);
        }
        if let Some(frame) = this.begun.frames.pop_front() {
            if this.begun.is_over() && !this.is_stripping {
                this.end_whole();
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        match this.begun.end.take() {
            Some(Ok(())) => return this.end(End::Whole, Ok(()), cx),
            Some(Err(error)) => return this.end(End::Broken, Err(BodyError::Replica(error)), cx),
            None => {}
        }
        loop {
            // Also after a frame that has been kept back: the client has had nothing to take.
            if let Some(exchange) = &mut this.exchange {
                exchange.on_poll();
            }
            match Pin::new(&mut this.begun.rest).poll_frame(cx) {
                Poll::Pending => {
                    if let Some(comment) = this.exchange.as_ref().and_then(Exchange::comment) {
                        return Poll::Ready(Some(Ok(Frame::data(comment))));
                    }
                    let is_cut = |exchange: &Exchange| exchange.is_cut(cx.waker());
                    if !this.exchange.as_ref().is_some_and(is_cut) {
                        return Poll::Pending;
                    }
                    return this.end(End::Stalled, Err(BodyError::Stalled), cx);
                }
                Poll::Ready(None) => return this.end(End::Whole, Ok(()), cx),
                Poll::Ready(Some(Err(error))) => {
                    return this.end(End::Broken, Err(BodyError::Replica(error)), cx);
                }
                Poll::Ready(Some(Ok(frame))) => {
                    let frame = this.forward(frame);
                    // Ended with the last frame too, because hyper may not poll again.
                    if this.begun.is_over() && !this.is_stripping {
                        this.end_whole();
                    }
                    if let Some(frame) = frame {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.end {
            Some(result) => result.is_ok(),
            // What was kept back may still have to go.
            None if self.is_stripping => self.exchange.is_none(),
            None => self.begun.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.has_open_length { SizeHint::default() } else { self.begun.size_hint() }
    }
}

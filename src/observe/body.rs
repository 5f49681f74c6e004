//! A response body that forwards the frames it receives and shows them to its exchange. What must
//! live as long as the answer travels inside it.

use super::Exchange;
use crate::record::End;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body `B`, observed. `held` is dropped with it, after the exchange has reported.
pub struct ObservedBody<B: Body, T> {
    inner: B,
    /// `None` once the exchange has ended.
    exchange: Option<Exchange>,
    /// The frames may become shorter.
    is_stripping: bool,
    /// What comes after what was kept back, if that went on last.
    after: Option<Polled<B::Error>>,
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

type Polled<E> = Option<Result<Frame<Bytes>, BodyError<E>>>;

impl<B: Body, T> ObservedBody<B, T> {
    /// Observes `inner` for `exchange`.
    pub fn new(inner: B, exchange: Exchange, held: T) -> Self {
        let is_stripping = exchange.is_stripping();
        let mut exchange = Some(exchange);
        // hyper does not poll a body that is empty from the start.
        if inner.is_end_stream()
            && let Some(exchange) = exchange.take()
        {
            exchange.end(End::Whole);
        }
        Self { inner, exchange, is_stripping, after: None, _held: held }
    }

    /// The body is over: what was kept back goes first.
    fn end(&mut self, end: End, last: Polled<B::Error>) -> Polled<B::Error> {
        let Some(mut exchange) = self.exchange.take() else { return last };
        let rest = exchange.flush();
        exchange.end(end);
        if rest.is_empty() {
            return last;
        }
        self.after = Some(last);
        Some(Ok(Frame::data(rest)))
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

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled<B::Error>> {
        let this = self.get_mut();
        if let Some(last) = this.after.take() {
            return Poll::Ready(last);
        }
        if let Some(exchange) = &mut this.exchange {
            exchange.on_poll();
        }
        loop {
            let polled = match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Ready(polled) => polled,
                Poll::Pending => {
                    let is_cut = |exchange: &Exchange| exchange.is_cut(cx.waker());
                    if !this.exchange.as_ref().is_some_and(is_cut) {
                        return Poll::Pending;
                    }
                    return Poll::Ready(this.end(End::Stalled, Some(Err(BodyError::Stalled))));
                }
            };
            match polled {
                None => return Poll::Ready(this.end(End::Whole, None)),
                Some(Err(error)) => {
                    let error = Some(Err(BodyError::Replica(error)));
                    return Poll::Ready(this.end(End::Broken, error));
                }
                Some(Ok(frame)) => {
                    let frame = this.forward(frame);
                    // Ended with the last frame too, because hyper may not poll again.
                    let is_last = this.inner.is_end_stream() && !this.is_stripping;
                    if is_last && let Some(exchange) = this.exchange.take() {
                        exchange.end(End::Whole);
                    }
                    if let Some(frame) = frame {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.after {
            Some(last) => last.is_none(),
            // What was kept back may still have to go.
            None if self.is_stripping => self.exchange.is_none(),
            None => self.inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_stripping { SizeHint::default() } else { self.inner.size_hint() }
    }
}

//! A response body that forwards the very frames it receives and shows them to its exchange.
//! What must live as long as the answer travels inside it.

use super::Exchange;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body `B`, observed. `held` is dropped with it, after the exchange has reported.
pub struct ObservedBody<B, T> {
    inner: B,
    /// `None` once the exchange has ended.
    exchange: Option<Exchange>,
    _held: T,
}

impl<B, T> ObservedBody<B, T> {
    /// Observes `inner` for `exchange`.
    pub fn new(inner: B, exchange: Exchange, held: T) -> Self
    where
        B: Body,
    {
        let mut exchange = Some(exchange);
        // hyper does not poll a body that is empty from the start.
        if inner.is_end_stream()
            && let Some(exchange) = exchange.take()
        {
            exchange.complete();
        }
        Self { inner, exchange, _held: held }
    }
}

impl<B, T> Body for ObservedBody<B, T>
where
    B: Body<Data = Bytes> + Unpin,
    T: Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(cx));
        if let (Some(Ok(frame)), Some(exchange)) = (&frame, &mut this.exchange)
            && let Some(data) = frame.data_ref()
        {
            exchange.on_data(data);
        }
        let end: fn(Exchange) = match &frame {
            Some(Err(_)) => Exchange::broken,
            Some(Ok(_)) if !this.inner.is_end_stream() => return Poll::Ready(frame),
            // Ended with the last frame too, because hyper may not poll again.
            Some(Ok(_)) | None => Exchange::complete,
        };
        if let Some(exchange) = this.exchange.take() {
            end(exchange);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

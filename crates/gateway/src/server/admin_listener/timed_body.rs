//! A request body with a deadline.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokio::time::Sleep;

/// A request body that fails with [`io::ErrorKind::TimedOut`] if its end does not arrive in time.
pub(super) struct TimedBody<B> {
    body: B,
    /// The deadline. `None`: the body has ended.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B: Body> TimedBody<B> {
    /// A body whose timeout begins now.
    pub(super) fn new(body: B, timeout: Duration) -> Self {
        let until_deadline = || Box::pin(tokio::time::sleep_until((clock::now() + timeout).into()));
        let deadline = (!body.is_end_stream()).then(until_deadline);
        Self { body, deadline }
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let frame = Pin::new(&mut self.body)
            .poll_frame(cx)
            .map_err(io::Error::other);
        let deadline = self.deadline.as_mut();
        if frame.is_pending() && deadline.is_some_and(|it| it.as_mut().poll(cx).is_ready()) {
            self.deadline = None;
            return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

//! A response body that keeps a guard, such as a request permit, until the body is sent or dropped.

use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A response body and a guard. The guard is dropped when the body is dropped.
pub(super) struct GuardedBody<B, T> {
    body: B,
    _guard: T,
}

impl<B, T> GuardedBody<B, T> {
    pub(super) fn new(body: B, guard: T) -> Self {
        Self { body, _guard: guard }
    }
}

impl<B: Body + Unpin, T: Unpin> Body for GuardedBody<B, T> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

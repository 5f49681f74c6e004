//! The body of a request that the gateway forwards while it arrives. The body counts its bytes. An error of the
//! body contains a [`GatewayError`].

use super::body::{body_error, max_upload_time};
use bytes::Bytes;
use http_body::{Body, Frame};
use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokenweir_protocol::atomic::AtomicCount;
use tokenweir_protocol::clock;
use tokenweir_request::error::GatewayError;
use tokio::time::Sleep;

/// A request body that the gateway forwards to the backend while it arrives.
pub(crate) struct ForwardedBody<B> {
    body: B,
    /// Number of bytes of the body that have arrived so far.
    received: Arc<AtomicCount>,
    max_bytes: usize,
    /// Maximum wait for the next chunk of the client. `None`: no limit.
    idle_timeout: Option<Duration>,
    /// Expires when the present wait for the client is too long. `None`: no limited wait is in progress.
    timer: Option<Pin<Box<Sleep>>>,
    /// Time at which the present wait for the client began. `None`: no limited wait is in progress.
    waits_since: Option<Instant>,
    /// Total of all earlier waits for the client. Times in which the backend does not read the body are not
    /// included.
    waited: Duration,
}

impl<B> ForwardedBody<B> {
    /// A body of at most `max_bytes` bytes. `idle_timeout`: the maximum wait for each chunk. `None`: no
    /// limit.
    pub(crate) fn new(
        body: B,
        received: Arc<AtomicCount>,
        max_bytes: usize,
        idle_timeout: Option<Duration>,
    ) -> Self {
        Self {
            body,
            received,
            max_bytes,
            idle_timeout,
            timer: None,
            waits_since: None,
            waited: Duration::ZERO,
        }
    }

    /// The `GatewayError` inside an error of this body. Without one, `IncompleteBody`.
    pub(crate) fn gateway_error(error: &io::Error) -> GatewayError {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        inner.cloned().unwrap_or(GatewayError::IncompleteBody)
    }
}

impl<B: Body<Data = Bytes, Error: StdError + 'static> + Unpin> Body for ForwardedBody<B> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            let Some(limit) = this.idle_timeout else {
                return Poll::Pending;
            };
            this.waits_since.get_or_insert_with(clock::now);
            let timer = this.timer.get_or_insert_with(|| {
                let rest = max_upload_time(this.received.get(), limit).saturating_sub(this.waited);
                Box::pin(tokio::time::sleep(limit.min(rest)))
            });
            return timer.as_mut().poll(cx).map(|()| {
                let seconds = limit.as_secs();
                Some(Err(io::Error::other(GatewayError::BodyTimeout { seconds })))
            });
        };
        this.timer = None;
        if let Some(since) = this.waits_since.take() {
            this.waited += clock::now().saturating_duration_since(since);
        }
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                return Poll::Ready(Some(Err(io::Error::other(body_error(&error)))));
            }
            None => return Poll::Ready(None),
        };
        let length = frame.data_ref().map_or(0, Bytes::len);
        let received = this.received.add(length) + length;
        if received > this.max_bytes {
            let error = GatewayError::BodyTooLarge {
                limit: this.max_bytes,
            };
            return Poll::Ready(Some(Err(io::Error::other(error))));
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{StreamExt, stream};
    use http_body_util::{BodyExt, StreamBody};

    const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

    async fn forwarded(
        parts: Vec<io::Result<&'static str>>,
        max_bytes: usize,
        pause: Duration,
    ) -> (Result<Bytes, GatewayError>, usize) {
        let received = Arc::<AtomicCount>::default();
        let parts = stream::iter(parts).then(move |part| async move {
            tokio::time::sleep(pause).await;
            part.map(|part| Frame::data(Bytes::from(part)))
        });
        let parts = Box::pin(StreamBody::new(parts));
        let body = ForwardedBody::new(parts, received.clone(), max_bytes, Some(IDLE_TIMEOUT));
        let collected = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let error = |error: io::Error| ForwardedBody::<()>::gateway_error(&error);
        (collected.map_err(error), received.get())
    }

    #[tokio::test(start_paused = true)]
    async fn each_exceeded_limit_has_its_error() {
        let parts = || vec![Ok("ab"), Ok("cd"), Ok("e")];
        let complete = forwarded(parts(), 5, IDLE_TIMEOUT / 2).await;
        assert_eq!(complete, (Ok("abcde".into()), 5));
        let too_large = forwarded(parts(), 3, Duration::ZERO).await;
        assert_eq!(too_large, (Err(GatewayError::BodyTooLarge { limit: 3 }), 4));
        let late = forwarded(parts(), 5, IDLE_TIMEOUT * 2).await;
        assert_eq!(late, (Err(GatewayError::BodyTimeout { seconds: 30 }), 0));
        let cut = vec![Ok("ab"), Err(io::ErrorKind::UnexpectedEof.into())];
        assert_eq!(
            forwarded(cut, 5, Duration::ZERO).await,
            (Err(GatewayError::IncompleteBody), 2)
        );
    }
}

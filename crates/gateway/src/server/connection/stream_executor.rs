//! Runs the streams of an HTTP/2 connection so that each stream can be aborted on its own.
//!
//! A client can stop reading one stream while it reads another. The write timeout of the connection does not
//! detect this, because the connection makes progress.

use hyper::rt::Executor;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use tokenweir_protocol::mutex::lock;
use tokenweir_request::observe::{RegisteredAbortHandle, ResponseAbortHandle};

/// The executor that runs the stream tasks of one HTTP/2 connection. It ends the task of a stream whose abort
/// handle is triggered.
///
/// hyper first calls the service with the request of a stream, and directly afterwards the executor with the
/// task of this stream. The service stores the abort handle of the stream in this value, and the executor takes
/// it for the task.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamExecutor(Arc<Mutex<Option<RegisteredAbortHandle>>>);

impl StreamExecutor {
    /// Stores the abort handle for the stream task that hyper executes next, and returns a clone of
    /// the handle for the response of the stream.
    pub(super) fn prepare_stream(&self, stream: RegisteredAbortHandle) -> ResponseAbortHandle {
        let abort_handle = stream.handle().clone();
        *lock(&self.0) = Some(stream);
        abort_handle
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let registration = lock(&self.0).take();
        tokio::spawn(async move {
            let Some(registration) = registration else {
                return stream.await;
            };
            let mut stream = pin!(stream);
            // When this future is dropped before its end, hyper resets the stream.
            poll_fn(|cx| {
                if registration.handle().register_and_check_abort(cx.waker()) {
                    Poll::Ready(())
                } else {
                    stream.as_mut().poll(cx)
                }
            })
            .await;
        });
    }
}

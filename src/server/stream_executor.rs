//! Runs the streams of an HTTP/2 connection so that each stream can be aborted on its own.
//!
//! A client can stop reading one stream while it reads another. The socket then shows progress, so
//! the write timeout of the connection does not detect it.

use hyper::rt::Executor;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use tokenweir_core::observe::{AbortRegistry, ResponseAbortHandle};

tokio::task_local! {
    static ABORT_HANDLE: ResponseAbortHandle;
}

/// An executor that gives each stream its own abort handle.
#[derive(Debug, Clone)]
pub(super) struct AbortableStreamExecutor {
    abort_registry: Arc<AbortRegistry>,
    connection_abort: ResponseAbortHandle,
}

impl AbortableStreamExecutor {
    pub(super) fn new(
        abort_registry: Arc<AbortRegistry>,
        connection_abort: ResponseAbortHandle,
    ) -> Self {
        Self { abort_registry, connection_abort }
    }

    /// The abort handle of the stream whose task calls this. Outside such a task (HTTP/1.1): the
    /// abort handle of the connection.
    pub(super) fn current_abort_handle(&self) -> ResponseAbortHandle {
        ABORT_HANDLE.try_with(Clone::clone).unwrap_or_else(|_| self.connection_abort.clone())
    }
}

impl<F> Executor<F> for AbortableStreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let registration = self.abort_registry.stream(&self.connection_abort);
        tokio::spawn(async move {
            let abort_handle = registration.handle();
            let mut stream = pin!(ABORT_HANDLE.scope(abort_handle.clone(), stream));
            // hyper resets a stream whose future is dropped before its end.
            poll_fn(|cx| {
                if abort_handle.register_and_check_abort(cx.waker()) {
                    Poll::Ready(())
                } else {
                    stream.as_mut().poll(cx)
                }
            })
            .await;
        });
    }
}

//! Runs the streams of an HTTP/2 connection so that each can be ended by itself: its client may take
//! nothing of one stream while it takes all of another, and then the socket tells nothing.

use hyper::rt::Executor;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use tokenweir_core::observe::{Leash, Leashes};

tokio::task_local! {
    static LEASH: Leash;
}

/// Runs streams, each on a leash of its own.
#[derive(Debug, Clone)]
pub(super) struct Leashing {
    leashes: Arc<Leashes>,
    connection: Leash,
}

impl Leashing {
    pub(super) fn new(leashes: Arc<Leashes>, connection: Leash) -> Self {
        Self { leashes, connection }
    }

    /// That of the stream that is run now, or that of the connection if it has one stream only.
    pub(super) fn leash(&self) -> Leash {
        LEASH.try_with(Clone::clone).unwrap_or_else(|_| self.connection.clone())
    }
}

impl<F> Executor<F> for Leashing
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let leashed = self.leashes.stream(&self.connection);
        tokio::spawn(async move {
            let leash = leashed.leash();
            let mut stream = pin!(LEASH.scope(leash.clone(), stream));
            // A stream that is dropped before its end is reset.
            poll_fn(|cx| {
                if leash.is_pulled_now(cx.waker()) {
                    Poll::Ready(())
                } else {
                    stream.as_mut().poll(cx)
                }
            })
            .await;
        });
    }
}

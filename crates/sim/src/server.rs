//! The socket side of a replica. Nagle's algorithm is off, idle connections are closed as uvicorn
//! closes them, and a client that closes its half of the connection counts as gone. One thing is
//! not vLLM's: hyper writes the sizes of chunks in upper case.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::generation::Generation;
use super::replica::Replica;
use super::routes;
use super::wire::{Events, Next};

/// Room for this many bytes of events is allocated at once.
const EVENT_BUFFER: usize = 4096;

/// Accepts connections for ever. Dropping the future cuts them all, as killing the server would.
pub(super) async fn serve(listener: TcpListener, replica: Arc<Replica>) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve_connection(stream, Arc::clone(&replica)));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(stream: TcpStream, replica: Arc<Replica>) {
    // If this fails the peer is gone already, and the next read says so.
    let _ = stream.set_nodelay(true);
    let idle = replica.settings().keep_alive;
    let service = service_fn(move |request| {
        let replica = Arc::clone(&replica);
        async move { Ok::<_, Infallible>(routes::answer(request, &replica).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(*idle);
    // An error is a client that left or broke the protocol; what it had running ends by itself.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

/// The body of a stream: one event, one frame, one HTTP chunk.
pub(super) struct EventStream {
    events: Events,
    generation: Generation,
    buffer: BytesMut,
}

impl EventStream {
    pub(super) fn new(events: Events, generation: Generation) -> Self {
        Self { events, generation, buffer: BytesMut::new() }
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Self { events, generation, buffer } = &mut *self;
        if buffer.capacity() < EVENT_BUFFER / 4 {
            buffer.reserve(EVENT_BUFFER);
        }
        match events.next(generation.progress(context), buffer) {
            Next::Event => {
                let event = buffer.split().freeze();
                generation.count_bytes(event.len());
                Poll::Ready(Some(Ok(Frame::data(event))))
            }
            Next::Wait => Poll::Pending,
            Next::End => Poll::Ready(None),
        }
    }
}

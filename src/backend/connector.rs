//! Connections of the pool, each with a count of the answers that it has carried: one that has
//! carried some and is found closed had died while it was kept.

use crate::tls::{ConnectError, Connector, Stream};
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use tower::Service;

/// How many answers a connection has carried.
#[derive(Debug, Clone, Default)]
pub(super) struct Uses(Arc<AtomicU32>);

/// Makes connections that count their answers.
#[derive(Debug, Clone)]
pub(super) struct Counted(pub(super) Connector);

/// A connection that counts its answers.
pub(super) struct CountedStream {
    io: TokioIo<Stream>,
    uses: Uses,
}

// === impl Uses ===

impl Uses {
    /// One more.
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there has been any.
    pub(super) fn are_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

// === impl Counted ===

impl Service<Uri> for Counted {
    type Response = CountedStream;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<CountedStream, ConnectError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move { Ok(CountedStream { io: connecting.await?, uses: Uses::default() }) })
    }
}

// === impl CountedStream ===

impl Connection for CountedStream {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.uses.clone())
    }
}

impl Read for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl Write for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }
}

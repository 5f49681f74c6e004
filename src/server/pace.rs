//! How long a client may take: nothing of what is written to it, too long for a head, or too long
//! until the next one. Timers are armed when a client is waited for and not before, so that nobody
//! pays for one who keeps up.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::observe::Leash;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A connection whose client must take what is written to it.
pub(super) struct Paced<S> {
    stream: S,
    limit: Duration,
    /// Tells the answers why they end.
    leash: Leash,
    timer: Timer<Write>,
}

/// Waits for one thing at a time. What is waited for has a key; the time counts from when that key
/// is new. It is set again when it has gone off too early, and not each time somebody is waited for.
pub(super) struct Timer<K> {
    sleep: Option<Pin<Box<Sleep>>>,
    awaited: Option<(K, Instant)>,
}

/// What did not get on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    /// Bytes found no room.
    Bytes,
    /// Bytes were taken, and have not been sent.
    Flush,
}

// === impl Timer ===

impl<K: PartialEq> Timer<K> {
    pub(super) const fn new() -> Self {
        Self { sleep: None, awaited: None }
    }

    /// Whether `key` has been waited for as long as `limit`.
    pub(super) fn is_over(&mut self, key: K, limit: Duration, cx: &mut Context<'_>) -> bool {
        let deadline = match &self.awaited {
            Some((awaited, deadline)) if *awaited == key => *deadline,
            _ => clock::now() + limit,
        };
        self.awaited = Some((key, deadline));
        let deadline = deadline.into();
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if deadline <= sleep.deadline() {
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }

    /// What is waited for.
    fn key(&self) -> Option<&K> {
        self.awaited.as_ref().map(|(key, _)| key)
    }

    /// Nothing is waited for. The timer stays, and means nothing.
    pub(super) fn forget(&mut self) {
        self.awaited = None;
    }
}

// === impl Paced ===

impl<S> Paced<S> {
    pub(super) fn new(stream: S, limit: Duration, leash: Leash) -> Self {
        Self { stream, limit, leash, timer: Timer::new() }
    }

    /// Bytes that are taken are progress. That there is nothing to flush is none.
    fn paced<T>(
        &mut self,
        write: Write,
        polled: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            if write == Write::Bytes || self.timer.key() == Some(&write) {
                self.timer.forget();
            }
            return polled;
        }
        let write = self.timer.key().copied().unwrap_or(write);
        if self.timer.is_over(write, self.limit, cx) {
            self.leash.pull();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.paced(Write::Bytes, polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.paced(Write::Bytes, polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.paced(Write::Flush, polled, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.paced(Write::Flush, polled, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    const LIMIT: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_cut_and_its_answers_are_told() {
        let (near, _far) = duplex(4);
        let leash = Leash::default();
        let mut paced = Paced::new(near, LIMIT, leash.clone());
        let began = clock::now();
        let error = paced.write_all(b"12345").await.unwrap_err();
        let took = clock::now().duration_since(began);
        assert_eq!((error.kind(), took), (io::ErrorKind::TimedOut, LIMIT));
        assert!(leash.is_pulled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_a_byte_now_and_then_is_slow_and_no_more() {
        let (near, mut far) = duplex(1);
        let leash = Leash::default();
        let mut paced = Paced::new(near, LIMIT, leash.clone());
        let reading = tokio::spawn(async move {
            let mut read = Vec::new();
            for _ in 0..5 {
                tokio::time::sleep(LIMIT / 2).await;
                read.push(far.read_u8().await.unwrap());
            }
            read
        });
        paced.write_all(b"12345").await.unwrap();
        assert_eq!(reading.await.unwrap(), b"12345");
        assert!(!leash.is_pulled());
    }
}

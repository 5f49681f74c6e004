//! What hyper leaves open at the door, closed around the socket.
//!
//! - hyper takes requests that others read in another way (see [`super::framing`]). Such a one is
//!   spoilt on its way in, so that hyper refuses it; a body breaks off, with an error.
//! - hyper does not see that a client leaves while bytes of its next request wait. So those are kept
//!   here until the request before them has been answered.
//! - hyper answers a head that it cannot read by itself, with an empty body. That answer gets the
//!   body that every other error has.

use super::connections::Activity;
use super::framing::{Found, Framing};
use super::pace::Timer;
use crate::error::Error;
use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection of a client, guarded.
pub(super) struct Guarded<S> {
    stream: S,
    framing: Framing,
    answered: Answered,
    patience: Patience,
    timer: Timer<(Waits, u32)>,
    /// What follows is no body.
    is_broken: bool,
    /// What came behind a request while it is answered.
    next: BytesMut,
    /// What is written instead of hyper's own answer, and how much of that stands for.
    instead: Bytes,
}

/// How many requests of a connection have been answered, and which are open.
#[derive(Debug, Clone, Default)]
pub(super) struct Answered {
    requests: Arc<AtomicU32>,
    activity: Arc<Activity>,
}

impl Answered {
    pub(super) fn tell(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// The requests that are open.
    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    fn count(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// How long a client is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For a head that has begun, and for the first one.
    pub(super) head: Duration,
    /// For the next one.
    pub(super) next: Duration,
}

/// What a client is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waits {
    Head,
    Next,
}

/// Most bytes that are kept of later requests, to see behind them whether the client has left.
const MOST_KEPT: usize = 16 << 10;

impl<S> Guarded<S> {
    /// A connection whose requests are told by `answered`.
    pub(super) fn new(stream: S, answered: Answered, patience: Patience) -> Self {
        Self {
            stream,
            framing: Framing::default(),
            answered,
            patience,
            timer: Timer::new(),
            is_broken: false,
            next: BytesMut::new(),
            instead: Bytes::new(),
        }
    }

    /// Nothing has come. A head that takes too long is an error; a connection that is not used any
    /// more is over.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.answered.activity.is_busy(cx.waker()) {
            self.timer.forget();
            return Poll::Pending;
        }
        let answered = self.answered.count();
        let waits =
            if answered == 0 || self.framing.is_in_head() { Waits::Head } else { Waits::Next };
        let limit = match waits {
            Waits::Head => self.patience.head,
            Waits::Next => self.patience.next,
        };
        match (self.timer.is_over((waits, answered), limit, cx), waits) {
            (false, _) => Poll::Pending,
            (true, Waits::Head) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            (true, Waits::Next) => Poll::Ready(Ok(())),
        }
    }

    /// Whether nothing is being answered. If something is, the task is woken when that is over.
    fn is_free(&self, cx: &Context<'_>) -> bool {
        !self.answered.activity.is_busy(cx.waker())
    }

    /// Reads what is in the buffer behind `from`, and takes back what is behind a request's end.
    fn inspect(&mut self, buffer: &mut ReadBuf<'_>, from: usize) {
        match self.framing.read(&buffer.filled()[from..]) {
            Found::More => {}
            Found::Unsound(at) => buffer.filled_mut()[from + at] = 0,
            Found::Broken(at) => {
                self.is_broken = true;
                buffer.set_filled(from + at);
            }
            Found::End(at) => {
                let rest = &buffer.filled()[from + at..];
                let mut next = BytesMut::from(rest);
                next.unsplit(std::mem::take(&mut self.next));
                self.next = next;
                buffer.set_filled(from + at);
            }
        }
    }
}

// === impl Guarded ===

impl<S: AsyncRead + Unpin> Guarded<S> {
    /// Reads behind the bytes that wait. Ready when the client has left.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut space = [0; 1 << 10];
        while self.next.len() < MOST_KEPT {
            let mut buffer = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.next.extend_from_slice(buffer.filled());
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let from = buffer.filled().len();
        if this.is_broken {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        if this.next.is_empty() {
            match Pin::new(&mut this.stream).poll_read(cx, buffer) {
                Poll::Ready(read) => read?,
                Poll::Pending => return this.poll_patience(cx),
            }
            if this.framing.is_between() && buffer.filled().len() > from && !this.is_free(cx) {
                this.next.extend_from_slice(&buffer.filled()[from..]);
                buffer.set_filled(from);
                return this.poll_left(cx);
            }
        } else {
            if !this.is_free(cx) {
                return this.poll_left(cx);
            }
            let count = this.next.len().min(buffer.remaining());
            buffer.put_slice(&this.next.split_to(count));
            if this.next.is_empty() {
                this.next = BytesMut::new();
            }
        }
        this.inspect(buffer, from);
        if this.is_broken && buffer.filled().len() == from {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Guarded<S> {
    /// Writes what stands for hyper's answer, all of it.
    fn poll_instead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(cx))?;
        match instead_of(bytes) {
            None => Pin::new(&mut self.stream).poll_write(cx, bytes),
            Some(instead) => {
                self.instead = instead;
                Poll::Ready(Ok(bytes.len()))
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = slices {
            return self.poll_write(cx, only);
        }
        ready!(self.poll_instead(cx))?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The whole answer that stands for one that hyper makes by itself: a 4xx without a body and
/// without the request id that all of ours have.
fn instead_of(head: &[u8]) -> Option<Bytes> {
    let status = head.strip_prefix(b"HTTP/1.1 4")?;
    let is_hypers = head.ends_with(b"\r\n\r\n")
        && memmem::find(head, b"content-length: 0\r\n").is_some()
        && memmem::find(head, b"x-request-id: ").is_none();
    let error = match status.get(..2)? {
        _ if !is_hypers => return None,
        b"14" => Error::UriTooLong,
        b"31" => Error::HeadTooLarge,
        _ => Error::BadHead,
    };
    Some(whole(&error))
}

/// An answer as it stands on the wire, after which the connection is closed.
pub(super) fn whole(error: &Error) -> Bytes {
    let (parts, body) = error.response().into_parts();
    let body = body.into_inner().unwrap_or_default();
    let mut answer = BytesMut::new();
    answer.extend_from_slice(format!("HTTP/1.1 {}\r\n", parts.status).as_bytes());
    for (name, value) in &parts.headers {
        answer.extend_from_slice(format!("{name}: ").as_bytes());
        answer.extend_from_slice(value.as_bytes());
        answer.extend_from_slice(b"\r\n");
    }
    let end = format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len());
    answer.extend_from_slice(end.as_bytes());
    answer.extend_from_slice(&body);
    answer.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_hyper_answers_by_itself_gets_a_body() {
        let hypers = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let answer = instead_of(hypers).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 400 Bad Request\r\n") && answer.ends_with(b"}}"));
        let of_a_replica =
            b"HTTP/1.1 404 Not Found\r\nx-request-id: a\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(instead_of(of_a_replica), None);
        assert_eq!(instead_of(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"), None);
    }
}

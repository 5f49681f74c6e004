//! What hyper leaves open at the door, closed around the socket.
//!
//! A request with both `Content-Length` and `Transfer-Encoding` is how requests are smuggled past
//! proxies; hyper would take the latter and drop the former. Here the head is spoilt on its way
//! in, so that hyper refuses it. And where hyper answers a head that it cannot read by itself, with
//! an empty body, the answer gets the body that every other error has.

use super::connections::Activity;
use super::pace::Timer;
use crate::error::Error;
use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memmem};
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
    head: Head,
    /// Requests answered so far: after each, the next head may come.
    answered: Answered,
    seen_answered: u32,
    patience: Patience,
    timer: Timer<(Waits, u32)>,
    /// What is written instead of hyper's own answer, and how much of that stands for.
    instead: Bytes,
}

/// Tells the guard that a request's body has been read, so that what comes next is a head.
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

/// The head that is being read, line by line, however it was cut.
#[derive(Debug, Default)]
struct Head {
    state: Reading,
    /// The name of the line being read, lower-cased; what is longer is of no interest.
    name: Vec<u8>,
    has_length: bool,
    has_encoding: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// The request line.
    #[default]
    RequestLine,
    Name,
    Value,
    /// Not a head: a body, or HTTP/2.
    Pause,
    Never,
}

/// Longest name of interest: `transfer-encoding`.
const LONGEST: usize = 17;

impl<S> Guarded<S> {
    pub(super) fn new(stream: S, answered: Answered, patience: Patience) -> Self {
        Self {
            stream,
            head: Head::default(),
            answered,
            seen_answered: 0,
            patience,
            timer: Timer::new(),
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
        let is_between = matches!(self.head.state, Reading::Pause | Reading::Never);
        let waits = if answered == 0 || self.head.is_begun() && !is_between {
            Waits::Head
        } else {
            Waits::Next
        };
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
}

// === impl Head ===

impl Head {
    /// Reads on. Returns the position of the byte to spoil if this head is framed twice.
    fn read(&mut self, mut bytes: &[u8]) -> Option<usize> {
        let all = bytes.len();
        while !bytes.is_empty() {
            match self.state {
                Reading::Pause | Reading::Never => return None,
                Reading::RequestLine => {
                    if self.name.is_empty() && bytes.starts_with(b"PRI") {
                        self.state = Reading::Never;
                        return None;
                    }
                    self.name.extend(&bytes[..1]);
                    bytes = self.skip_line(bytes);
                }
                Reading::Value => bytes = self.skip_line(bytes),
                Reading::Name => {
                    let byte = bytes[0];
                    bytes = &bytes[1..];
                    match byte {
                        b':' if self.is_framed_twice() => return Some(all - bytes.len() - 1),
                        b':' => self.state = Reading::Value,
                        b'\n' if self.name.iter().all(|byte| *byte == b'\r') => {
                            *self = Self { state: Reading::Pause, ..Self::default() };
                        }
                        b'\n' => self.name.clear(),
                        byte if self.name.len() <= LONGEST => {
                            self.name.push(byte.to_ascii_lowercase());
                        }
                        _ => {}
                    }
                }
            }
        }
        None
    }

    fn is_begun(&self) -> bool {
        self.state != Reading::RequestLine || !self.name.is_empty()
    }

    fn skip_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match memchr(b'\n', bytes) {
            Some(end) => {
                self.state = Reading::Name;
                self.name.clear();
                &bytes[end + 1..]
            }
            None => &[],
        }
    }

    fn is_framed_twice(&mut self) -> bool {
        self.has_length |= self.name == b"content-length";
        self.has_encoding |= self.name == b"transfer-encoding";
        self.has_length && self.has_encoding
    }
}

// === impl Guarded ===

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Ready(read) => read?,
            Poll::Pending => return self.poll_patience(cx),
        }
        let answered = self.answered.count();
        if answered != self.seen_answered && self.head.state == Reading::Pause {
            self.head = Head::default();
            self.seen_answered = answered;
        }
        if let Some(at) = self.head.read(&buffer.filled()[before..]) {
            // A name without its colon is no header: hyper answers 400 and closes.
            buffer.filled_mut()[before + at] = 0;
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

    fn spoilt(pieces: &[&str]) -> Option<(usize, usize)> {
        let mut head = Head::default();
        let find = |(index, piece): (usize, &&str)| Some((index, head.read(piece.as_bytes())?));
        pieces.iter().enumerate().find_map(find)
    }

    #[test]
    fn a_head_framed_twice_is_spoilt_however_it_was_cut() {
        let head = "POST / HTTP/1.1\r\nContent-Length: 2\r\nTRANSFER-encoding: chunked\r\n\r\n";
        let colon = head.find("encoding:").unwrap() + 8;
        for cut in 1..head.len() {
            let expected = if colon < cut { (0, colon) } else { (1, colon - cut) };
            assert_eq!(spoilt(&[&head[..cut], &head[cut..]]), Some(expected), "{cut}");
        }
    }

    #[test]
    fn one_framing_is_fine_and_a_body_is_not_a_head() {
        let body = "transfer-encoding: chunked\r\ncontent-length: 3\r\n";
        let with_length = format!("POST / HTTP/1.1\r\ncontent-length: 60\r\n\r\n{body}");
        assert_eq!(spoilt(&[&with_length, body]), None);
        let in_a_value =
            "POST / HTTP/1.1\r\nx: content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n";
        assert_eq!(spoilt(&[in_a_value]), None);
        assert_eq!(spoilt(&["PRI * HTTP/2.0\r\n\r\n", body, body]), None);
    }

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

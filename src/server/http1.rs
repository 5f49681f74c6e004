//! The requests of one HTTP/1.1 connection, one after the other, on the task of the connection: read
//! a head, have it answered, send the answer, and so on until one of the two has enough.
//!
//! While a request is answered, the connection is read behind it: a client that leaves drops the
//! answer, and with it everything that is done for it. An answer is asked for more only when what it
//! gave has been taken.

use super::connections::Open;
use super::door::{Guest, Incoming};
use super::front::Closing;
use super::limits::Limits;
use super::pace::Timer;
use super::wire::{Came, Shared, Wire};
use crate::proxy::Answer;
use bytes::{Bytes, BytesMut};
use http::{Method, Response, Version};
use http_body::Body;
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::error::Error;
use tokenweir_core::http1::{self, Client, Framed, Most, RequestHead, Unsound};

/// Whoever is told that this is the last answer, and has asked nothing that could be read.
const LAST: Client = Client { method: Method::GET, is_old: false, is_kept: false };
/// Longest time for a client to leave when it has been told that the connection ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves a connection until it ends.
///
/// There is one such future for each open stream. So what is needed for a moment only is in functions
/// that do not wait.
pub(super) async fn serve(
    guest: &Guest,
    shared: Shared,
    limits: &Limits,
    closing: Closing,
) -> io::Result<()> {
    let mut waiting = Waiting::new(closing);
    loop {
        let came = poll_fn(|cx| waiting.poll(cx, &mut shared.wire(), limits)).await?;
        let (client, open, answer) = match came {
            Came::Head(head) => {
                let (client, open, answering) = ask(guest, &shared, head);
                let Some(answer) = unless_left(&shared, answering).await else { break };
                (client, Some(open), answer)
            }
            Came::Unsound(unsound) => (LAST, None, refusal(unsound).response().map(Answer::Left)),
            Came::Nothing => break,
        };
        let mut sending = Sending::begin(guest, &mut shared.wire(), client, answer);
        poll_fn(|cx| sending.poll(cx, &mut shared.wire())).await?;
        drop(open);
        if !sending.is_kept {
            break;
        }
    }
    bid_farewell(&shared).await
}

/// Has a request answered whose head has come.
fn ask(
    guest: &Guest,
    shared: &Shared,
    head: RequestHead,
) -> (Client, Open, Pin<Box<impl Future<Output = Response<Answer>> + Send + use<>>>) {
    let RequestHead { request, is_kept, .. } = head;
    let is_old = request.version() < Version::HTTP_11;
    let client = Client { method: request.method().clone(), is_old, is_kept };
    let request = request.map(|()| Incoming::Http1(shared.upload()));
    let (open, answering) = guest.ask(request, None);
    (client, open, answering)
}

/// The answer. `None`: the client has left before.
async fn unless_left(
    shared: &Shared,
    mut answering: Pin<Box<impl Future<Output = Response<Answer>>>>,
) -> Option<Response<Answer>> {
    poll_fn(|cx| match answering.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => shared.wire().poll_left(cx).map(|()| None),
    })
    .await
}

/// An error as it stands on the wire, after which the connection is closed.
pub(super) fn whole(error: &Error) -> Bytes {
    let (head, body) = error.response().into_parts();
    let body = body.into_inner().unwrap_or_default();
    let mut wire = BytesMut::new();
    http1::put_head(&LAST, &head, Framed::Length(body.len() as u64), clock::wall, &mut wire);
    wire.extend_from_slice(&body);
    wire.freeze()
}

/// The connection ends: what the client still sends is not read as a request any more.
async fn bid_farewell(shared: &Shared) -> io::Result<()> {
    let leaving = async {
        poll_fn(|cx| shared.wire().poll_shutdown(cx)).await?;
        poll_fn(|cx| shared.wire().poll_drain(cx)).await;
        Ok(())
    };
    tokio::time::timeout(FAREWELL, leaving).await.unwrap_or(Ok(()))
}

fn refusal(unsound: Unsound) -> Error {
    match unsound {
        Unsound::TooLong => Error::HeadTooLarge,
        Unsound::Target => Error::UriTooLong,
        Unsound::Head | Unsound::Length | Unsound::Chunks => Error::BadHead,
    }
}

// === impl Waiting ===

/// Waiting for a head.
struct Waiting {
    timer: Timer<(u64, bool)>,
    /// Heads that have come.
    heads: u64,
    closing: Closing,
}

impl Waiting {
    fn new(closing: Closing) -> Self {
        Self { timer: Timer::new(), heads: 0, closing }
    }

    /// Waits for a head that has begun, and for the first one, as long as a head may take, and for the
    /// next one as long as a connection is kept. When the gateway ends, nobody is waited for who
    /// has been answered.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        wire: &mut Wire,
        limits: &Limits,
    ) -> Poll<io::Result<Came>> {
        let most = Most { bytes: limits.head, headers: limits.headers };
        if let Poll::Ready(came) = wire.poll_head(cx, most) {
            self.heads += 1;
            self.timer.forget();
            return Poll::Ready(came);
        }
        let is_in_head = wire.is_in_head();
        let (is_pause, key) = (self.heads > 0 && !is_in_head, (self.heads, is_in_head));
        let limit = if is_pause { limits.keep_alive } else { limits.head_timeout };
        let is_over = self.timer.is_over(key, limit, cx);
        if is_pause && (is_over || self.closing.poll(cx).is_ready()) {
            return Poll::Ready(Ok(Came::Nothing));
        }
        if is_over { Poll::Ready(Err(ErrorKind::TimedOut.into())) } else { Poll::Pending }
    }
}

// === impl Sending ===

/// An answer whose head is in the outbox, or further.
struct Sending {
    body: Answer,
    framed: Framed,
    /// Another request may follow.
    is_kept: bool,
    /// The body is over, or broken.
    end: Option<io::Result<()>>,
}

impl Sending {
    fn begin(guest: &Guest, wire: &mut Wire, client: Client, answer: Response<Answer>) -> Self {
        let (head, body) = answer.into_parts();
        let framed = Framed::of(&client, &head, body.size_hint().exact());
        // A client that comes again on this connection might come when it is closed.
        let is_last = guest.is_leaving() || !wire.has_whole_request() || !framed.has_end();
        let client = Client { is_kept: client.is_kept && !is_last, ..client };
        http1::put_head(&client, &head, framed, clock::wall, wire.out.short());
        Self { body, framed, is_kept: client.is_kept, end: None }
    }

    /// Writes what there is, until the body is over.
    fn poll(&mut self, cx: &mut Context<'_>, wire: &mut Wire) -> Poll<io::Result<()>> {
        loop {
            let is_waiting = self.gather(cx, wire).is_pending();
            let is_written = wire.poll_flush(cx)?.is_ready();
            match self.end.take_if(|_| is_written) {
                Some(end) => return Poll::Ready(end),
                None if is_written && !is_waiting => {}
                None => {
                    ready!(wire.poll_left(cx));
                    return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
                }
            }
        }
    }

    /// Takes from the body what is there and what has room. Pending: there may be more later.
    fn gather(&mut self, cx: &mut Context<'_>, wire: &mut Wire) -> Poll<()> {
        if self.framed == Framed::Nothing {
            self.end = Some(Ok(()));
        }
        while self.end.is_none() && wire.out.has_room() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers are for the next hop only.
                    if let Ok(data) = frame.into_data() {
                        self.put(data, wire);
                    }
                }
                Some(Err(error)) => self.end = Some(Err(io::Error::other(error))),
                None => self.finish(wire),
            }
        }
        Poll::Ready(())
    }

    fn put(&mut self, data: Bytes, wire: &mut Wire) {
        match &mut self.framed {
            _ if data.is_empty() => {}
            Framed::Chunks => {
                http1::put_chunk_size(data.len(), wire.out.short());
                wire.out.put_data(data, http1::CHUNK_END);
            }
            Framed::Length(left) => match left.checked_sub(data.len() as u64) {
                Some(rest) => {
                    *left = rest;
                    wire.out.put_data(data, b"");
                }
                None => self.end = Some(Err(ErrorKind::InvalidData.into())),
            },
            Framed::Nothing | Framed::UntilClose => wire.out.put_data(data, b""),
        }
    }

    fn finish(&mut self, wire: &mut Wire) {
        self.end = Some(match self.framed {
            Framed::Length(1..) => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        });
        if self.framed == Framed::Chunks {
            wire.out.put(http1::LAST_CHUNK);
        }
    }
}

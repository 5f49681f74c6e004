//! The request's body: received whole, because it must be there to be peeked at and sent again.

use super::memory::HeldBytes;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, request};
use http_body_util::BodyExt;
use hyper::body::Body;
use std::error::Error as StdError;
use std::io;
use std::time::Duration;
use tokenweir_core::error::Error;
use tokenweir_core::openai::request::Peek;
use tokenweir_core::openai::{Api, form};

/// Room that is made before anything has come, and how many times what has come later. A client says
/// how long its body is, and need not send it.
const ROOM: usize = 64 << 10;
const TRUST: usize = 16;

/// The body of a request as it comes.
pub trait Incoming: Body<Data = Bytes, Error: StdError + 'static> + Unpin {}

impl<B: Body<Data = Bytes, Error: StdError + 'static> + Unpin> Incoming for B {}

/// Reads the whole body, if it is not too long and not encoded. Between two pieces of it the client
/// is waited for as long as `patience`.
///
/// Pieces are put together as they come: a client may send a byte at a time, and a piece that is
/// kept costs more than it has in it. The room for them is counted in `held` before it is filled. While
/// it grows, the old room and the new one are there, on the worker that copies.
pub(super) async fn whole(
    head: &request::Parts,
    mut body: impl Incoming,
    limit: usize,
    patience: Duration,
    held: &mut HeldBytes<'_>,
) -> Result<Bytes, Error> {
    if let Some(encoding) = head.headers.get(CONTENT_ENCODING)
        && encoding.as_bytes() != b"identity"
    {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        return Err(Error::EncodedBody { encoding });
    }
    let length = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    if length > limit {
        return Err(Error::BodyTooLarge { limit });
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(patience, body.frame()).await;
        let frame = frame.map_err(|_| Error::BodyTimeout { seconds: patience.as_secs() })?;
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(|error| broken(&error))?.into_data() else { continue };
        if first.len() + all.len() + data.len() > limit {
            return Err(Error::BodyTooLarge { limit });
        }
        if first.is_empty() && all.is_empty() {
            held.grow_to(data.len())?;
            first = data;
            continue;
        }
        if all.is_empty() {
            let room = length.min(ROOM).max(first.len() + data.len());
            held.grow_to(room)?;
            all = BytesMut::with_capacity(room);
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        let least = all.len() + data.len();
        if least > all.capacity() {
            let missing = length.saturating_sub(all.len());
            let wanted = if missing > 0 { missing.min(TRUST * all.len()) } else { all.len() };
            // Not `reserve`, which makes more room than it is asked for.
            let room = (all.len() + wanted).min(limit).max(least);
            held.grow_to(room)?;
            let mut larger = BytesMut::with_capacity(room);
            larger.extend_from_slice(&all);
            all = larger;
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// What is not as HTTP wants it is the client's fault. Else it has left.
fn broken(error: &(dyn StdError + 'static)) -> Error {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)) {
            return Error::BadHead;
        }
        cause = error.source();
    }
    Error::BodyCut
}

/// Reads what the gateway acts on. The body must be a JSON object, or on the audio paths a form. Any
/// other body is refused, because a backend could read another model in it than the one that access
/// was checked for.
pub(super) fn peek(head: &request::Parts, body: &[u8], api: Option<Api>) -> Result<Peek, Error> {
    let peek = if api == Some(Api::Audio) {
        let mut types = head.headers.get_all(CONTENT_TYPE).iter();
        let only = types.next().filter(|_| types.next().is_none());
        form::peek(only.map_or(&[], HeaderValue::as_bytes), body)
    } else {
        Peek::of(body)
    };
    peek.map_err(|error| {
        tracing::debug!(path = head.uri.path(), %error, "body refused");
        error.into()
    })
}

#[cfg(test)]
mod tests {
    use super::super::memory::BodyMemory;
    use super::*;
    use futures_util::{StreamExt, stream};
    use http::Request;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    const PATIENCE: Duration = Duration::from_secs(30);

    async fn received(
        pieces: Vec<io::Result<&'static [u8]>>,
        limit: usize,
    ) -> Result<Bytes, Error> {
        let head = Request::new(()).into_parts().0;
        let frame = |piece: io::Result<&'static [u8]>| piece.map(|p| Frame::data(Bytes::from(p)));
        let body = StreamBody::new(stream::iter(pieces.into_iter().map(frame)));
        let memory = BodyMemory::default();
        whole(&head, body, limit, PATIENCE, &mut memory.begin()).await
    }

    #[tokio::test]
    async fn pieces_become_one_body_and_the_only_one_is_not_copied() {
        let piece: &[u8] = b"{\"model\"";
        let whole = received(vec![Ok(piece)], 100).await.unwrap();
        assert_eq!(whole.as_ptr(), piece.as_ptr());
        let bytes = (0..1_000).map(|_| Ok(&b"x"[..])).collect();
        assert_eq!(received(bytes, 1_000).await.unwrap(), "x".repeat(1_000));
        let empty = vec![Ok(&b""[..]), Ok(b"a"), Ok(b""), Ok(b"b")];
        assert_eq!(received(empty, 2).await.unwrap(), "ab");
    }

    #[tokio::test]
    async fn a_body_is_too_long_cut_or_malformed() {
        let three = || vec![Ok(&b"a"[..]), Ok(b"b"), Ok(b"c")];
        assert_eq!(received(three(), 2).await, Err(Error::BodyTooLarge { limit: 2 }));
        let ended = |kind: io::ErrorKind| vec![Ok(&b"a"[..]), Err(kind.into())];
        let cut = received(ended(io::ErrorKind::UnexpectedEof), 9).await;
        assert_eq!(cut, Err(Error::BodyCut));
        let malformed = received(ended(io::ErrorKind::InvalidInput), 9).await;
        assert_eq!(malformed, Err(Error::BadHead));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_take_its_time_in_all_and_not_pause_for_too_long() {
        let told = |pause: Duration| async move {
            let pieces = stream::iter(["a", "b", "c"]).then(move |piece| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, io::Error>(Frame::data(Bytes::from(piece)))
            });
            let head = Request::new(()).into_parts().0;
            let (memory, body) = (BodyMemory::default(), Box::pin(StreamBody::new(pieces)));
            whole(&head, body, 9, PATIENCE, &mut memory.begin()).await
        };
        assert_eq!(told(PATIENCE / 2).await.unwrap(), "abc");
        assert_eq!(told(2 * PATIENCE).await, Err(Error::BodyTimeout { seconds: 30 }));
    }

    #[tokio::test]
    async fn the_room_for_a_body_is_counted_as_it_grows_and_is_not_larger_than_the_body() {
        const PIECE: usize = 16 << 10;
        const LENGTH: usize = 100 * PIECE;
        for declared in [true, false] {
            let head = Request::post("/").header(CONTENT_LENGTH, LENGTH).body(()).unwrap();
            let mut head = head.into_parts().0;
            if !declared {
                head.headers.clear();
            }
            let memory = BodyMemory::default();
            let (mut held, mut came) = (memory.begin(), 0);
            let pieces = stream::iter(0..100).map(|_| {
                // What is held before a piece has come, for those that have.
                assert!(memory.held() <= ROOM.max((TRUST + 1) * came), "{came}");
                came += PIECE;
                Ok::<_, io::Error>(Frame::data(Bytes::from(vec![b'x'; PIECE])))
            });
            let body = StreamBody::new(pieces);
            let limit = LENGTH + PIECE;
            let body = whole(&head, Box::pin(body), limit, PATIENCE, &mut held).await.unwrap();
            assert_eq!(body.len(), LENGTH);
            let most = if declared { LENGTH } else { limit };
            assert!((LENGTH..=most).contains(&memory.held()), "{}", memory.held());
            drop(held);
            assert_eq!(memory.held(), 0);
        }
    }

    #[tokio::test]
    async fn a_body_for_which_there_is_no_memory_is_refused_as_soon_as_it_is_too_long() {
        let memory = BodyMemory::new(4);
        let pieces =
            ["aaa", "bbb"].map(|piece| Ok::<_, io::Error>(Frame::data(Bytes::from(piece))));
        let head = Request::new(()).into_parts().0;
        let mut held = memory.begin();
        let body = StreamBody::new(stream::iter(pieces));
        let refused = whole(&head, body, 100, PATIENCE, &mut held).await;
        assert_eq!(refused, Err(Error::BodyMemory));
    }
}

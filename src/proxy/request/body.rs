//! Receives a complete request body, which is needed to read its fields and to retry it.

use super::body_memory::BodyMemoryPermit;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, request};
use http_body_util::BodyExt;
use hyper::body::Body;
use std::error::Error as StdError;
use std::io;
use std::time::Duration;
use tokenweir_core::error::GatewayError;
use tokenweir_core::openai::request_fields::RequestFields;
use tokenweir_core::openai::{Api, form};

/// Most bytes that are allocated for the declared length alone: a client can declare a length and
/// not send it.
const INITIAL_CAPACITY_BYTES: usize = 64 << 10;
/// Largest growth of the buffer at once, as a multiple of the bytes received.
const MAX_GROWTH_FACTOR: usize = 16;

/// The body of a request as the server receives it.
pub trait IncomingBody: Body<Data = Bytes, Error: StdError + 'static> + Unpin {}

impl<B: Body<Data = Bytes, Error: StdError + 'static> + Unpin> IncomingBody for B {}

/// Reads the complete body. Fails if it is longer than `limit` bytes, if it has a
/// `Content-Encoding`, if no chunk arrives for `idle_timeout`, or if the memory of all bodies is
/// used up.
///
/// Chunks are copied into one buffer as they arrive: a client may send a byte at a time, and a
/// stored chunk costs more memory than its bytes. The capacity of the buffer is counted in
/// `memory_permit` before it is allocated. While the buffer grows, the old and the new one exist,
/// and both are counted.
pub(crate) async fn read_body(
    head: &request::Parts,
    mut body: impl IncomingBody,
    limit: usize,
    idle_timeout: Duration,
    memory_permit: &mut BodyMemoryPermit<'_>,
) -> Result<Bytes, GatewayError> {
    if let Some(encoding) = head.headers.get(CONTENT_ENCODING)
        && encoding.as_bytes() != b"identity"
    {
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).into_owned();
        return Err(GatewayError::EncodedBody { encoding });
    }
    let length = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    if length > limit {
        return Err(GatewayError::BodyTooLarge { limit });
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(idle_timeout, body.frame()).await;
        let seconds = idle_timeout.as_secs();
        let Some(frame) = frame.map_err(|_| GatewayError::BodyTimeout { seconds })? else { break };
        let Ok(data) = frame.map_err(|error| body_error(&error))?.into_data() else { continue };
        if first.len() + all.len() + data.len() > limit {
            return Err(GatewayError::BodyTooLarge { limit });
        }
        if first.is_empty() && all.is_empty() {
            memory_permit.grow_to(data.len())?;
            first = data;
            continue;
        }
        if all.is_empty() {
            let capacity = length.min(INITIAL_CAPACITY_BYTES).max(first.len() + data.len());
            all = grow_buffer(std::mem::take(&mut first), capacity, memory_permit)?;
        }
        let required = all.len() + data.len();
        if required > all.capacity() {
            let missing = length.saturating_sub(all.len());
            let growth =
                if missing > 0 { missing.min(MAX_GROWTH_FACTOR * all.len()) } else { all.len() };
            // Not `reserve`, which allocates more than requested.
            let capacity = (all.len() + growth).min(limit).max(required);
            all = grow_buffer(all, capacity, memory_permit)?;
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// Copies the bytes received so far into a buffer with this capacity.
fn grow_buffer(
    received: impl AsRef<[u8]>,
    capacity: usize,
    memory_permit: &mut BodyMemoryPermit<'_>,
) -> Result<BytesMut, GatewayError> {
    memory_permit.add(capacity)?;
    let mut larger = BytesMut::with_capacity(capacity);
    larger.extend_from_slice(received.as_ref());
    drop(received);
    memory_permit.shrink_to(capacity);
    Ok(larger)
}

/// The error of a body that ended early: invalid HTTP framing, or a client disconnect.
fn body_error(error: &(dyn StdError + 'static)) -> GatewayError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)) {
            return GatewayError::BadHead;
        }
        cause = error.source();
    }
    GatewayError::IncompleteBody
}

/// Reads the fields that the gateway acts on. The body must be a JSON object, or a form on the
/// audio paths. Any other body is rejected, because a backend could read another model from it than
/// the one for which access was checked.
pub(crate) fn peek_request(
    head: &request::Parts,
    body: &[u8],
    api: Option<Api>,
) -> Result<RequestFields, GatewayError> {
    let fields = if api == Some(Api::Audio) {
        let mut types = head.headers.get_all(CONTENT_TYPE).iter();
        let only = types.next().filter(|_| types.next().is_none());
        form::peek(only.map_or(&[], HeaderValue::as_bytes), body)
    } else {
        RequestFields::parse(body)
    };
    fields.map_err(|error| {
        tracing::debug!(path = head.uri.path(), %error, "request body rejected");
        error.into()
    })
}

#[cfg(test)]
mod tests {
    use super::super::body_memory::BodyMemory;
    use super::*;
    use futures_util::{StreamExt, stream};
    use http::Request;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

    async fn read_chunks(
        chunks: Vec<io::Result<&'static [u8]>>,
        limit: usize,
    ) -> Result<Bytes, GatewayError> {
        let head = Request::new(()).into_parts().0;
        let frame = |chunk: io::Result<&'static [u8]>| chunk.map(|c| Frame::data(Bytes::from(c)));
        let body = StreamBody::new(stream::iter(chunks.into_iter().map(frame)));
        let memory = BodyMemory::default();
        read_body(&head, body, limit, IDLE_TIMEOUT, &mut memory.empty_permit()).await
    }

    #[tokio::test]
    async fn chunks_become_one_body_and_a_single_chunk_is_not_copied() {
        let chunk: &[u8] = b"{\"model\"";
        let body = read_chunks(vec![Ok(chunk)], 100).await.unwrap();
        assert_eq!(body.as_ptr(), chunk.as_ptr());
        let bytes = (0..1_000).map(|_| Ok(&b"x"[..])).collect();
        assert_eq!(read_chunks(bytes, 1_000).await.unwrap(), "x".repeat(1_000));
        let empty = vec![Ok(&b""[..]), Ok(b"a"), Ok(b""), Ok(b"b")];
        assert_eq!(read_chunks(empty, 2).await.unwrap(), "ab");
    }

    #[tokio::test]
    async fn a_body_that_is_too_long_truncated_or_malformed_is_rejected() {
        let three = || vec![Ok(&b"a"[..]), Ok(b"b"), Ok(b"c")];
        assert_eq!(read_chunks(three(), 2).await, Err(GatewayError::BodyTooLarge { limit: 2 }));
        let ended = |kind: io::ErrorKind| vec![Ok(&b"a"[..]), Err(kind.into())];
        let truncated = read_chunks(ended(io::ErrorKind::UnexpectedEof), 9).await;
        assert_eq!(truncated, Err(GatewayError::IncompleteBody));
        let malformed = read_chunks(ended(io::ErrorKind::InvalidInput), 9).await;
        assert_eq!(malformed, Err(GatewayError::BadHead));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_read_and_a_long_pause_is_rejected() {
        let read_with_pauses = |pause: Duration| async move {
            let chunks = stream::iter(["a", "b", "c"]).then(move |chunk| async move {
                tokio::time::sleep(pause).await;
                Ok::<_, io::Error>(Frame::data(Bytes::from(chunk)))
            });
            let head = Request::new(()).into_parts().0;
            let (memory, body) = (BodyMemory::default(), Box::pin(StreamBody::new(chunks)));
            read_body(&head, body, 9, IDLE_TIMEOUT, &mut memory.empty_permit()).await
        };
        assert_eq!(read_with_pauses(IDLE_TIMEOUT / 2).await.unwrap(), "abc");
        let result = read_with_pauses(2 * IDLE_TIMEOUT).await;
        assert_eq!(result, Err(GatewayError::BodyTimeout { seconds: 30 }));
    }

    #[tokio::test]
    async fn the_buffer_is_counted_as_it_grows_and_is_not_larger_than_the_body() {
        const CHUNK_BYTES: usize = 16 << 10;
        const BODY_BYTES: usize = 100 * CHUNK_BYTES;
        for declared in [true, false] {
            let head = Request::post("/").header(CONTENT_LENGTH, BODY_BYTES).body(()).unwrap();
            let mut head = head.into_parts().0;
            if !declared {
                head.headers.clear();
            }
            let memory = BodyMemory::default();
            let (mut permit, mut received) = (memory.empty_permit(), 0);
            let chunks = stream::iter(0..100).map(|_| {
                // The memory before this chunk is bounded by the bytes received so far.
                assert!(
                    memory.used_bytes()
                        <= INITIAL_CAPACITY_BYTES.max((MAX_GROWTH_FACTOR + 1) * received),
                    "{received}"
                );
                received += CHUNK_BYTES;
                Ok::<_, io::Error>(Frame::data(Bytes::from(vec![b'x'; CHUNK_BYTES])))
            });
            let body = StreamBody::new(chunks);
            let limit = BODY_BYTES + CHUNK_BYTES;
            let body =
                read_body(&head, Box::pin(body), limit, IDLE_TIMEOUT, &mut permit).await.unwrap();
            assert_eq!(body.len(), BODY_BYTES);
            let max = if declared { BODY_BYTES } else { limit };
            assert!((BODY_BYTES..=max).contains(&memory.used_bytes()), "{}", memory.used_bytes());
            drop(permit);
            assert_eq!(memory.used_bytes(), 0);
        }
    }

    #[tokio::test]
    async fn the_old_buffer_is_counted_while_the_buffer_grows() {
        // Two chunks need a buffer of 200 bytes beside the first chunk. The third chunk needs one
        // of 400 bytes beside that of 200.
        for (limit, chunks, counted) in
            [(299, 2, None), (300, 2, Some(200)), (599, 3, None), (600, 3, Some(400))]
        {
            let memory = BodyMemory::new(limit);
            let mut permit = memory.empty_permit();
            let chunk = || Ok::<_, io::Error>(Frame::data(Bytes::from(vec![b'x'; 100])));
            let body = StreamBody::new(stream::iter((0..chunks).map(|_| chunk())));
            let head = Request::new(()).into_parts().0;
            let result = read_body(&head, body, 1_000, IDLE_TIMEOUT, &mut permit).await;
            assert_eq!(result.ok().map(|_| memory.used_bytes()), counted, "{limit}");
        }
    }

    #[tokio::test]
    async fn a_body_without_memory_is_rejected_at_the_chunk_that_exceeds_it() {
        let memory = BodyMemory::new(4);
        let chunks =
            ["aaa", "bbb"].map(|chunk| Ok::<_, io::Error>(Frame::data(Bytes::from(chunk))));
        let head = Request::new(()).into_parts().0;
        let mut permit = memory.empty_permit();
        let body = StreamBody::new(stream::iter(chunks));
        let result = read_body(&head, body, 100, IDLE_TIMEOUT, &mut permit).await;
        assert_eq!(result, Err(GatewayError::BodyMemory));
    }
}

//! Receives the complete body of a request. The gateway needs the whole body to read its fields and to retry
//! the request.

use super::body_memory::{BodyMemory, BodyMemoryPermit, HeldBody, ReceivedBody};
use super::settings::RequestSettings;
use crate::proxy::access::Principal;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, request};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use std::error::Error as StdError;
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::http1::content_encoding::ContentEncoding;
use tokenweir_protocol::openai::{Api, RequestFields, form};
use tokenweir_protocol::{clock, headers};
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::Exchange;

/// Maximum initial capacity of the body buffer, in bytes. A larger `Content-Length` does not raise the initial
/// capacity, because a client can declare a length and send fewer bytes.
const INITIAL_CAPACITY_BYTES: usize = 64 << 10;
/// Maximum growth of the body buffer in one step, as a multiple of the bytes received so far.
const MAX_GROWTH_FACTOR: usize = 3;

/// Maximum length of a decoded body, as a multiple of its encoded length. [`MAX_SMALL_BYTES`] applies instead
/// if it is longer. Prompts have a lower compression ratio.
const MAX_DECODED_FACTOR: usize = 200;
const MAX_SMALL_BYTES: usize = 1 << 20;
/// Number of bytes that are decoded before other tasks run.
const DECODED_AT_ONCE_BYTES: usize = 64 << 10;

/// Minimum rate of an upload, in bytes per second. Compressed speech has a higher rate.
const MIN_UPLOAD_RATE: f64 = 256.0;
/// Time for which an upload may be slower than [`MIN_UPLOAD_RATE`], as a multiple of the idle timeout.
const SLOW_UPLOAD_FACTOR: u32 = 2;

/// The body of a request as the server receives it.
pub trait IncomingBody: Body<Data = Bytes, Error: StdError + 'static> + Unpin {
    /// Takes the body, if the gateway has already received it.
    fn take_held(&mut self) -> Option<HeldBody> {
        None
    }
}

impl IncomingBody for Full<Bytes> {}

impl IncomingBody for UnsyncBoxBody<Bytes, io::Error> {}

impl IncomingBody for ReceivedBody {
    fn take_held(&mut self) -> Option<HeldBody> {
        self.take()
    }
}

/// Reads the complete body of a request within the limits of `settings` and of the `memory` of all bodies.
/// Decodes an encoded body, and removes its `Content-Encoding` from the head. Records the received length of
/// the body and the time at which it was complete. Fails as `read_body` and `decode` do.
pub async fn receive_body(
    settings: &RequestSettings,
    memory: &Arc<BodyMemory>,
    principal: &Principal,
    exchange: &mut Exchange,
    head: &mut request::Parts,
    mut body: impl IncomingBody,
) -> Result<HeldBody, GatewayError> {
    if let Some(held) = body.take_held() {
        return Ok(held);
    }
    let encoding = accepted_encoding(head)?;
    let limit = settings.max_body_bytes;
    let party = principal.party(exchange.record().client);
    let mut permit = memory.empty_permit(party);
    let bytes = read_body(head, body, limit, settings.body_idle_timeout, &mut permit).await?;
    let record = exchange.record();
    record.timings.received = Some(clock::now());
    record.bytes_in = bytes.len() as u64;
    let Some(encoding) = encoding else {
        return Ok(HeldBody::new(bytes, permit));
    };
    if bytes.is_empty() {
        return Ok(HeldBody::new(bytes, permit));
    }
    let decoded = Box::pin(decode(encoding, bytes, limit, &mut permit)).await?;
    head.headers.remove(CONTENT_ENCODING);
    Ok(HeldBody::new(decoded, permit))
}

/// The encoding of the body. Fails for an encoding that the gateway does not decode. Also fails for an encoded
/// body with a digest header, because the digest would not match the decoded body.
fn accepted_encoding(head: &request::Parts) -> Result<Option<ContentEncoding>, GatewayError> {
    match ContentEncoding::of(&head.headers) {
        Ok(Some(encoding)) if headers::has_body_digest(&head.headers) => {
            Err(GatewayError::EncodedBody {
                encoding: encoding.as_str().to_owned(),
            })
        }
        Ok(encoding) => Ok(encoding),
        Err(encoding) => Err(GatewayError::EncodedBody { encoding }),
    }
}

/// Decodes a body, and counts the memory of both bodies before allocation. Fails if the decoded body is longer
/// than `limit` or than [`MAX_DECODED_FACTOR`] allows, if the encoded body is damaged, or if the memory limit
/// of all request bodies is exceeded.
async fn decode(
    encoding: ContentEncoding,
    encoded: Bytes,
    limit: usize,
    memory_permit: &mut BodyMemoryPermit,
) -> Result<Bytes, GatewayError> {
    let factor_limit = encoded
        .len()
        .saturating_mul(MAX_DECODED_FACTOR)
        .max(MAX_SMALL_BYTES);
    let limit = limit.min(factor_limit);
    let damaged = |_| GatewayError::EncodedBody {
        encoding: encoding.as_str().to_owned(),
    };
    let mut decoder = encoding.decoder(encoded).map_err(damaged)?;
    memory_permit.add(DECODED_AT_ONCE_BYTES + decoder.window())?;
    let mut piece = vec![0; DECODED_AT_ONCE_BYTES];
    let mut buffer = BytesMut::new();
    loop {
        let length = match decoder.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                tokio::task::yield_now().await;
                continue;
            }
            Err(error) => return Err(damaged(error)),
        };
        let required = buffer.len() + length;
        if required > limit {
            return Err(GatewayError::BodyTooLarge { limit });
        }
        if required > buffer.capacity() {
            let capacity = (2 * buffer.len()).max(required).min(limit);
            memory_permit.add(capacity)?;
            let mut larger = BytesMut::with_capacity(capacity);
            larger.extend_from_slice(&buffer);
            buffer = larger;
        }
        buffer.extend_from_slice(&piece[..length]);
        tokio::task::yield_now().await;
    }
    drop(decoder);
    memory_permit.shrink_to(buffer.capacity());
    Ok(buffer.freeze())
}

/// Maximum time that a client may take for the first `received` bytes of a body. Without this limit, a client
/// that sends one byte within each `idle_timeout` would hold the body memory forever.
pub(crate) fn max_upload_time(received: usize, idle_timeout: Duration) -> Duration {
    let transfer = Duration::try_from_secs_f64(received as f64 / MIN_UPLOAD_RATE);
    idle_timeout
        .saturating_mul(SLOW_UPLOAD_FACTOR)
        .saturating_add(transfer.unwrap_or_default())
}

/// The length of the body in bytes, as the request head declares it. `None`: the head declares no valid length.
/// Fails if the length exceeds `limit`.
pub(crate) fn declared_length(
    head: &request::Parts,
    limit: usize,
) -> Result<Option<usize>, GatewayError> {
    let length = head
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    let length = length.and_then(|length| length.parse().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(GatewayError::BodyTooLarge { limit });
    }
    Ok(length)
}

/// Reads the complete body of a request. Fails if the body is longer than `limit` bytes, if no chunk arrives
/// for `idle_timeout`, if the client ends the body early, or if the memory limit of all request bodies is
/// exceeded.
///
/// Chunks are copied into one buffer as they arrive, because a client may send single bytes, and a stored chunk
/// costs more memory than its bytes. A body of a single chunk is not copied. `memory_permit` counts the
/// capacity of the buffer before allocation. While the buffer grows, the old and the new buffer exist, and both
/// are counted.
async fn read_body(
    head: &request::Parts,
    mut body: impl Body<Data = Bytes, Error: StdError + 'static> + Unpin,
    limit: usize,
    idle_timeout: Duration,
    memory_permit: &mut BodyMemoryPermit,
) -> Result<Bytes, GatewayError> {
    let length = declared_length(head, limit)?.unwrap_or(0);
    let mut first_chunk = Bytes::new();
    let mut buffer = BytesMut::new();
    let began_at = clock::now();
    let mut now = began_at;
    while !body.is_end_stream() {
        let received = first_chunk.len() + buffer.len();
        if received > 0 {
            now = clock::now();
        }
        let rest = began_at + max_upload_time(received, idle_timeout);
        let until = rest.min(now + idle_timeout);
        let frame = tokio::time::timeout_at(until.into(), body.frame()).await;
        let seconds = idle_timeout.as_secs();
        let Some(frame) = frame.map_err(|_| GatewayError::BodyTimeout { seconds })? else {
            break;
        };
        let Ok(data) = frame.map_err(|error| body_error(&error))?.into_data() else {
            continue;
        };
        if received + data.len() > limit {
            return Err(GatewayError::BodyTooLarge { limit });
        }
        if received == 0 {
            memory_permit.grow_to(data.len())?;
            first_chunk = data;
            continue;
        }
        if buffer.is_empty() {
            let capacity = length
                .min(INITIAL_CAPACITY_BYTES)
                .max(first_chunk.len() + data.len());
            buffer = grow_buffer(std::mem::take(&mut first_chunk), capacity, memory_permit)?;
        }
        let required = buffer.len() + data.len();
        if required > buffer.capacity() {
            // `BytesMut::reserve` would allocate more than requested.
            let capacity = next_capacity(buffer.len(), length).min(limit).max(required);
            buffer = grow_buffer(buffer, capacity, memory_permit)?;
        }
        buffer.extend_from_slice(&data);
    }
    Ok(if buffer.is_empty() {
        first_chunk
    } else {
        buffer.freeze()
    })
}

/// The capacity to which a full buffer of `received` bytes grows: the declared length of the body, but at most
/// [`MAX_GROWTH_FACTOR`] times `received` more. If `received` has reached the declared length, the capacity
/// doubles.
fn next_capacity(received: usize, declared: usize) -> usize {
    let missing = declared.saturating_sub(received);
    let growth = if missing > 0 {
        missing.min(MAX_GROWTH_FACTOR * received)
    } else {
        received
    };
    received + growth
}

/// Copies the bytes received so far into a new buffer of `capacity` bytes. `memory_permit` counts
/// both buffers during the copy, and only the new buffer afterwards.
fn grow_buffer(
    received: impl AsRef<[u8]>,
    capacity: usize,
    memory_permit: &mut BodyMemoryPermit,
) -> Result<BytesMut, GatewayError> {
    memory_permit.add(capacity)?;
    let mut larger = BytesMut::with_capacity(capacity);
    larger.extend_from_slice(received.as_ref());
    drop(received);
    memory_permit.shrink_to(capacity);
    Ok(larger)
}

/// The error for a body that could not be read to its end: `BadHead` for invalid HTTP framing, and
/// `IncompleteBody` if the client disconnected.
pub(crate) fn body_error(error: &(dyn StdError + 'static)) -> GatewayError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref().map(io::Error::kind);
        if matches!(kind, Some(ErrorKind::InvalidInput | ErrorKind::InvalidData)) {
            return GatewayError::BadHead;
        }
        cause = error.source();
    }
    GatewayError::IncompleteBody
}

/// Reads the fields of the body that the gateway uses. The body must be a JSON object, or a form on
/// the audio paths. A GET or DELETE request may have no body. Fails for any other body, because a
/// backend could read another model name from it than the gateway, which checks the access to a model. The fields are
/// boxed, because each caller that returns them would copy 600 bytes.
pub fn peek_request(
    head: &request::Parts,
    body: &[u8],
    api: Option<Api>,
) -> Result<Box<RequestFields>, GatewayError> {
    if body.is_empty() && matches!(head.method, Method::GET | Method::DELETE) {
        return Ok(Box::default());
    }
    let fields = if api == Some(Api::Audio) {
        let content_type = headers::single_value(&head.headers, &CONTENT_TYPE);
        form::peek(content_type.unwrap_or_default().as_bytes(), body)
    } else {
        RequestFields::parse(body)
    };
    fields.map(Box::new).map_err(|error| {
        tracing::debug!(path = head.uri.path(), %error, "request body rejected");
        error.into()
    })
}

#[cfg(test)]
mod tests {
    use super::super::body_memory::tests::party;
    use super::*;
    use futures_util::{Stream, StreamExt, stream};
    use http::{HeaderValue, Request};
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

    /// Reads a body that arrives in these chunks. `declared`: the value of `Content-Length`.
    async fn read(
        declared: Option<usize>,
        chunks: impl Stream<Item = io::Result<Bytes>>,
        limit: usize,
        permit: &mut BodyMemoryPermit,
    ) -> Result<Bytes, GatewayError> {
        let mut head = Request::new(()).into_parts().0;
        head.headers
            .extend(declared.map(|length| (CONTENT_LENGTH, HeaderValue::from(length))));
        let body = StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data)));
        read_body(&head, Box::pin(body), limit, IDLE_TIMEOUT, permit).await
    }

    async fn read_chunks(
        chunks: Vec<io::Result<&'static [u8]>>,
        limit: usize,
    ) -> Result<Bytes, GatewayError> {
        let chunks = stream::iter(chunks).map(|chunk| chunk.map(Bytes::from));
        read(
            None,
            chunks,
            limit,
            &mut Arc::new(BodyMemory::default()).empty_permit(party("a")),
        )
        .await
    }

    #[tokio::test]
    async fn only_bodies_of_several_chunks_are_copied() {
        let chunk: &[u8] = b"{\"model\"";
        let body = read_chunks(vec![Ok(chunk)], 100).await.unwrap();
        assert_eq!(body.as_ptr(), chunk.as_ptr());
        let bytes = (0..1_000).map(|_| Ok(&b"x"[..])).collect();
        assert_eq!(read_chunks(bytes, 1_000).await.unwrap(), "x".repeat(1_000));
        let empty = vec![Ok(&b""[..]), Ok(b"a"), Ok(b""), Ok(b"b")];
        assert_eq!(read_chunks(empty, 2).await.unwrap(), "ab");
    }

    #[tokio::test]
    async fn long_truncated_and_malformed_bodies_are_rejected() {
        let three_chunks = || vec![Ok(&b"a"[..]), Ok(b"b"), Ok(b"c")];
        let result = read_chunks(three_chunks(), 2).await;
        assert_eq!(result, Err(GatewayError::BodyTooLarge { limit: 2 }));
        let chunk_and_error = |kind: ErrorKind| vec![Ok(&b"a"[..]), Err(kind.into())];
        let truncated = read_chunks(chunk_and_error(ErrorKind::UnexpectedEof), 9).await;
        assert_eq!(truncated, Err(GatewayError::IncompleteBody));
        let malformed = read_chunks(chunk_and_error(ErrorKind::InvalidInput), 9).await;
        assert_eq!(malformed, Err(GatewayError::BadHead));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_pause_ends_a_body() {
        let read_with_pauses = |pause: Duration| async move {
            let chunks = stream::iter(["a", "b", "c"]).then(move |chunk| async move {
                tokio::time::sleep(pause).await;
                Ok(Bytes::from(chunk))
            });
            read(
                None,
                chunks,
                9,
                &mut Arc::new(BodyMemory::default()).empty_permit(party("a")),
            )
            .await
        };
        assert_eq!(read_with_pauses(IDLE_TIMEOUT / 2).await.unwrap(), "abc");
        let result = read_with_pauses(2 * IDLE_TIMEOUT).await;
        assert_eq!(result, Err(GatewayError::BodyTimeout { seconds: 30 }));
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_of_single_bytes_is_rejected() {
        let bytes = stream::repeat(()).then(|()| async {
            tokio::time::sleep(IDLE_TIMEOUT / 30 * 29).await;
            Ok(Bytes::from("x"))
        });
        let (began_at, memory) = (clock::now(), Arc::new(BodyMemory::default()));
        let result = read(None, bytes, 100, &mut memory.empty_permit(party("a"))).await;
        assert_eq!(result, Err(GatewayError::BodyTimeout { seconds: 30 }));
        assert!(clock::now() - began_at < IDLE_TIMEOUT * 3);
    }

    /// A gzip body that decodes to `length` equal bytes.
    fn gzip_of(length: usize) -> Bytes {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        io::Write::write_all(&mut encoder, &vec![b' '; length]).unwrap();
        encoder.finish().unwrap().into()
    }

    #[tokio::test]
    async fn decoding_keeps_both_limits() {
        const MIB: usize = 1 << 20;
        let too_long = |limit| Err(GatewayError::BodyTooLarge { limit });
        let bomb = gzip_of(16 * MIB);
        let factor_limit = bomb.len() * MAX_DECODED_FACTOR;
        let damaged = Err(GatewayError::EncodedBody {
            encoding: "gzip".to_owned(),
        });
        for (encoded, limit, memory_limit, expected) in [
            (gzip_of(MIB), MIB, 8 * MIB, Ok(MIB)),
            (gzip_of(MIB + 1), MIB, 8 * MIB, too_long(MIB)),
            (gzip_of(MIB), MIB, MIB, Err(GatewayError::BodyMemory)),
            (bomb, 64 * MIB, 64 * MIB, too_long(factor_limit)),
            (Bytes::from_static(b"{}"), MIB, MIB, damaged),
        ] {
            let memory = Arc::new(BodyMemory::new(memory_limit));
            let mut permit = memory.empty_permit(party("a"));
            permit.add(encoded.len()).unwrap();
            let decoded = decode(ContentEncoding::Gzip, encoded, limit, &mut permit).await;
            assert_eq!(decoded.as_ref().map(Bytes::len), expected.as_ref().copied());
            if let Ok(body) = decoded {
                assert!((body.len()..=MIB).contains(&memory.used_bytes()));
            }
            drop(permit);
            assert_eq!(memory.used_bytes(), 0);
        }
    }

    #[tokio::test]
    async fn the_buffer_is_counted_as_it_grows() {
        const CHUNK_BYTES: usize = 16 << 10;
        const BODY_BYTES: usize = 100 * CHUNK_BYTES;
        for declared in [Some(BODY_BYTES), None] {
            let memory = Arc::new(BodyMemory::default());
            let (mut permit, mut received) = (memory.empty_permit(party("a")), 0);
            let chunks = stream::iter(0..100).map(|_| {
                // The bytes received before this chunk bound the memory.
                assert!(
                    memory.used_bytes()
                        <= INITIAL_CAPACITY_BYTES.max((MAX_GROWTH_FACTOR + 1) * received),
                    "{received}"
                );
                received += CHUNK_BYTES;
                Ok(Bytes::from(vec![b'x'; CHUNK_BYTES]))
            });
            let limit = BODY_BYTES + CHUNK_BYTES;
            let body = read(declared, chunks, limit, &mut permit).await.unwrap();
            assert_eq!(body.len(), BODY_BYTES);
            let max = declared.unwrap_or(limit);
            assert!(
                (BODY_BYTES..=max).contains(&memory.used_bytes()),
                "{}",
                memory.used_bytes()
            );
            drop(permit);
            assert_eq!(memory.used_bytes(), 0);
        }
    }

    #[tokio::test]
    async fn growth_needs_memory_for_both_buffers() {
        // Two chunks need a buffer of 200 bytes in addition to the first chunk of 100 bytes. The
        // third chunk needs a buffer of 400 bytes in addition to the buffer of 200 bytes.
        for (limit, chunks, counted) in [
            (299, 2, Err(GatewayError::BodyMemory)),
            (300, 2, Ok(200)),
            (599, 3, Err(GatewayError::BodyMemory)),
            (600, 3, Ok(400)),
        ] {
            let memory = Arc::new(BodyMemory::new(limit));
            let mut permit = memory.empty_permit(party("a"));
            let chunks = stream::iter(0..chunks).map(|_| Ok(Bytes::from(vec![b'x'; 100])));
            let result = read(None, chunks, 1_000, &mut permit).await;
            assert_eq!(result.map(|_| memory.used_bytes()), counted, "{limit}");
        }
    }
}

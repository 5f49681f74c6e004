//! Decoding of message bodies: extracts the body data from the received bytes, according to the framing of the
//! body.

use super::fields::{Http1ParseError, parse_digits, to_header_map};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use memchr::memchr;

/// The framing of a body, with the progress of its decoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyDecoder {
    /// A body framed by its length, with the number of bytes that have not arrived yet.
    Length(u64),
    /// A body in chunks, each with its size in the first line.
    Chunked(ChunkedDecoder),
    /// A response body that ends when the backend closes the connection.
    UntilClose,
}

/// How far a chunked body has been decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkedDecoder {
    state: ChunkState,
    /// Whether to reject framing that other HTTP implementations may interpret differently.
    is_strict: bool,
    /// The part of the current line, or of the trailer section, that has arrived.
    line_buffer: Vec<u8>,
    /// Trailers of a body that has ended. `None`: there were no trailers, or [`BodyDecoder::take_trailers`] has
    /// returned them.
    trailers: Option<Box<HeaderMap>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    /// The line with the size of the next chunk is expected.
    Size,
    /// Chunk data is expected: the number of bytes of the chunk that have not arrived yet.
    Data(u64),
    /// The line ending after chunk data is expected.
    DataEnd,
    /// The last chunk has arrived, and the trailer section is expected.
    Trailers,
    Complete,
}

/// Maximum length in bytes of the first line of a chunk (size and extensions), and of a trailer section.
const MAX_CHUNK_LINE_BYTES: usize = 16 << 10;
const MAX_TRAILERS: usize = 64;

impl BodyDecoder {
    /// A body without bytes.
    pub const fn empty() -> Self {
        Self::Length(0)
    }

    /// A chunked response body before its first chunk.
    pub const fn chunked() -> Self {
        Self::Chunked(ChunkedDecoder::new(false))
    }

    /// A chunked request body before its first chunk. A blank after a chunk size is an error, because HTTP
    /// implementations interpret it differently.
    pub const fn chunked_strict() -> Self {
        Self::Chunked(ChunkedDecoder::new(true))
    }

    /// Whether all bytes of the body, with trailers, have arrived.
    pub fn is_complete(&self) -> bool {
        match self {
            Self::Length(remaining) => *remaining == 0,
            Self::Chunked(decoder) => decoder.state == ChunkState::Complete,
            Self::UntilClose => false,
        }
    }

    /// Number of body bytes that have not arrived yet. `None`: the body is not framed by its
    /// length.
    pub fn remaining_bytes(&self) -> Option<u64> {
        match self {
            Self::Length(remaining) => Some(*remaining),
            Self::Chunked(_) | Self::UntilClose => None,
        }
    }

    /// Appends the body data in `bytes` to `data`. Returns how many of the `bytes` belong to the body. Later
    /// bytes belong to the next message.
    pub fn decode(&mut self, bytes: &[u8], data: &mut BytesMut) -> Result<usize, Http1ParseError> {
        match self {
            Self::Length(remaining) => {
                let count = (*remaining).min(bytes.len() as u64);
                *remaining -= count;
                data.put_slice(&bytes[..count as usize]);
                Ok(count as usize)
            }
            Self::Chunked(decoder) => decoder.decode(bytes, data),
            Self::UntilClose => {
                data.put_slice(bytes);
                Ok(bytes.len())
            }
        }
    }

    /// Removes the bytes that belong to the body from the beginning of `bytes`, and returns the body data in
    /// them. The data of a body framed by its length is not copied.
    pub fn decode_bytes(&mut self, bytes: &mut Bytes) -> Result<Bytes, Http1ParseError> {
        if let Self::Length(remaining) = self {
            let count = (*remaining).min(bytes.len() as u64);
            *remaining -= count;
            return Ok(bytes.split_to(count as usize));
        }
        let mut data = BytesMut::with_capacity(bytes.len());
        let count = self.decode(bytes, &mut data)?;
        bytes.advance(count);
        Ok(data.freeze())
    }

    /// Whether trailers have arrived that [`BodyDecoder::take_trailers`] has not returned yet.
    pub fn has_trailers(&self) -> bool {
        matches!(
            self,
            Self::Chunked(ChunkedDecoder {
                trailers: Some(_),
                ..
            })
        )
    }

    /// Takes the trailers of a body that has ended. `None`: there were no trailers, or an earlier call has
    /// returned them.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        let Self::Chunked(decoder) = self else {
            return None;
        };
        decoder.trailers.take().map(|trailers| *trailers)
    }
}

impl ChunkedDecoder {
    const fn new(is_strict: bool) -> Self {
        Self {
            state: ChunkState::Size,
            is_strict,
            line_buffer: Vec::new(),
            trailers: None,
        }
    }

    fn decode(&mut self, bytes: &[u8], data: &mut BytesMut) -> Result<usize, Http1ParseError> {
        let mut offset = 0;
        while offset < bytes.len() && self.state != ChunkState::Complete {
            let unread = &bytes[offset..];
            if let ChunkState::Data(remaining) = &mut self.state {
                let count = (*remaining).min(unread.len() as u64);
                *remaining -= count;
                data.put_slice(&unread[..count as usize]);
                offset += count as usize;
                if *remaining == 0 {
                    self.state = ChunkState::DataEnd;
                }
                continue;
            }
            let line_feed = memchr(b'\n', unread);
            let count = line_feed.map_or(unread.len(), |line_feed| line_feed + 1);
            offset += count;
            if self.line_buffer.len() + count > MAX_CHUNK_LINE_BYTES {
                return Err(Http1ParseError::InvalidChunks);
            }
            if line_feed.is_some() {
                self.on_line_end(&unread[..count])?;
            } else {
                self.line_buffer.extend_from_slice(unread);
            }
        }
        Ok(offset)
    }

    /// Processes a complete line. `line_buffer` has its beginning, and `line_end` has the rest.
    fn on_line_end(&mut self, line_end: &[u8]) -> Result<(), Http1ParseError> {
        if self.state == ChunkState::Trailers {
            self.line_buffer.extend_from_slice(line_end);
            if !self.line_buffer.ends_with(b"\r\n") {
                return Err(Http1ParseError::InvalidChunks);
            }
            if self.line_buffer == b"\r\n" || self.line_buffer.ends_with(b"\r\n\r\n") {
                self.state = ChunkState::Complete;
                self.trailers = parse_trailers(&std::mem::take(&mut self.line_buffer))?;
            }
            return Ok(());
        }
        let mut buffered = std::mem::take(&mut self.line_buffer);
        let line = if buffered.is_empty() {
            line_end
        } else {
            buffered.extend_from_slice(line_end);
            &buffered
        };
        let line = line
            .strip_suffix(b"\r\n")
            .ok_or(Http1ParseError::InvalidChunks)?;
        self.state = match self.state {
            ChunkState::DataEnd if line.is_empty() => ChunkState::Size,
            ChunkState::Size => {
                match self
                    .parse_size(line)
                    .ok_or(Http1ParseError::InvalidChunks)?
                {
                    0 => ChunkState::Trailers,
                    size => ChunkState::Data(size),
                }
            }
            _ => return Err(Http1ParseError::InvalidChunks),
        };
        Ok(())
    }

    /// Parses the size in the first line of a chunk. Chunk extensions are ignored. `None`: the line has no
    /// valid size.
    fn parse_size(&self, line: &[u8]) -> Option<u64> {
        let digits = &line[..memchr(b';', line).unwrap_or(line.len())];
        if memchr(b'\r', line).is_some() {
            return None;
        }
        parse_digits(
            if self.is_strict {
                digits
            } else {
                digits.trim_ascii_end()
            },
            16,
        )
    }
}

/// Parses the trailer section. `None`: there are no trailers.
fn parse_trailers(lines: &[u8]) -> Result<Option<Box<HeaderMap>>, Http1ParseError> {
    let mut header_slots = [httparse::EMPTY_HEADER; MAX_TRAILERS];
    let parsed = httparse::parse_headers(lines, &mut header_slots)
        .map_err(|_| Http1ParseError::InvalidChunks)?;
    let httparse::Status::Complete((_, headers)) = parsed else {
        return Err(Http1ParseError::InvalidChunks);
    };
    let map =
        to_header_map(headers, 0, HeaderValue::from_bytes).ok_or(Http1ParseError::InvalidChunks)?;
    Ok(Some(map).filter(|map| !map.is_empty()).map(Box::new))
}

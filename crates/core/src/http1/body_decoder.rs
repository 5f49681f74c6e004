//! Decoding of message bodies from their framing.

use super::fields::{Http1ParseError, fields, parse_digits};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use memchr::memchr;

/// The rest of a body that is being decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyDecoder {
    /// A body framed by its length; the number of bytes that remain.
    Length(u64),
    /// A chunked body.
    Chunked(ChunkedDecoder),
    /// A body that ends when the server closes the connection.
    UntilClose,
}

/// The state of a chunked body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkedDecoder {
    state: ChunkState,
    /// Reject framing that other servers may interpret differently.
    is_strict: bool,
    /// The incomplete line that is being read, or all trailer lines.
    line_buffer: Vec<u8>,
    trailers: Option<Box<HeaderMap>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    Size,
    /// In chunk data; the number of bytes that remain.
    Data(u64),
    /// At the line ending after chunk data.
    DataEnd,
    Trailers,
    Complete,
}

/// Longest line with a chunk's size and extensions, and longest trailer section, in bytes.
const MAX_CHUNK_LINE_BYTES: usize = 16 << 10;
/// Most trailers.
const MAX_TRAILERS: usize = 64;

// === impl BodyDecoder ===

impl BodyDecoder {
    /// A body without bytes.
    pub const fn empty() -> Self {
        Self::Length(0)
    }

    /// A chunked body before its first chunk.
    pub const fn chunked() -> Self {
        Self::Chunked(ChunkedDecoder::new(false))
    }

    /// A chunked body whose chunk sizes must not be followed by blanks.
    pub const fn chunked_strict() -> Self {
        Self::Chunked(ChunkedDecoder::new(true))
    }

    /// Whether the body has ended.
    pub fn is_complete(&self) -> bool {
        match self {
            Self::Length(remaining) => *remaining == 0,
            Self::Chunked(decoder) => decoder.state == ChunkState::Complete,
            Self::UntilClose => false,
        }
    }

    /// Number of bytes that remain. `None` unless the body is framed by its length.
    pub fn remaining_bytes(&self) -> Option<u64> {
        match self {
            Self::Length(remaining) => Some(*remaining),
            Self::Chunked(_) | Self::UntilClose => None,
        }
    }

    /// Appends the body data in `bytes` to `data`. Returns how many of `bytes` belong to the body;
    /// those after them belong to the next message.
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

    /// Splits the body data off the beginning of `bytes`, without a copy if the body is framed by
    /// its length.
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

    /// Whether the body has trailers that were not taken.
    pub fn has_trailers(&self) -> bool {
        matches!(self, Self::Chunked(ChunkedDecoder { trailers: Some(_), .. }))
    }

    /// Takes the trailers of a body that has ended.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        let Self::Chunked(decoder) = self else { return None };
        decoder.trailers.take().map(|trailers| *trailers)
    }
}

// === impl ChunkedDecoder ===

impl ChunkedDecoder {
    const fn new(is_strict: bool) -> Self {
        Self { state: ChunkState::Size, is_strict, line_buffer: Vec::new(), trailers: None }
    }

    fn decode(&mut self, bytes: &[u8], data: &mut BytesMut) -> Result<usize, Http1ParseError> {
        let mut at = 0;
        while at < bytes.len() && self.state != ChunkState::Complete {
            let rest = &bytes[at..];
            if let ChunkState::Data(remaining) = &mut self.state {
                let count = (*remaining).min(rest.len() as u64);
                *remaining -= count;
                data.put_slice(&rest[..count as usize]);
                at += count as usize;
                if *remaining == 0 {
                    self.state = ChunkState::DataEnd;
                }
                continue;
            }
            let end = memchr(b'\n', rest);
            let count = end.map_or(rest.len(), |end| end + 1);
            at += count;
            if self.line_buffer.len() + count > MAX_CHUNK_LINE_BYTES {
                return Err(Http1ParseError::InvalidChunks);
            }
            if end.is_some() {
                self.on_line_end(&rest[..count])?;
            } else {
                self.line_buffer.extend_from_slice(rest);
            }
        }
        Ok(at)
    }

    /// Processes a line that ends with `end`; its beginning is in `line_buffer`.
    fn on_line_end(&mut self, end: &[u8]) -> Result<(), Http1ParseError> {
        if self.state == ChunkState::Trailers {
            self.line_buffer.extend_from_slice(end);
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
            end
        } else {
            buffered.extend_from_slice(end);
            &buffered
        };
        let line = line.strip_suffix(b"\r\n").ok_or(Http1ParseError::InvalidChunks)?;
        self.state = match self.state {
            ChunkState::DataEnd if line.is_empty() => ChunkState::Size,
            ChunkState::Size => {
                match self.parse_size(line).ok_or(Http1ParseError::InvalidChunks)? {
                    0 => ChunkState::Trailers,
                    size => ChunkState::Data(size),
                }
            }
            _ => return Err(Http1ParseError::InvalidChunks),
        };
        Ok(())
    }

    /// Parses the size of a chunk. Extensions are ignored.
    fn parse_size(&self, line: &[u8]) -> Option<u64> {
        let digits = &line[..memchr(b';', line).unwrap_or(line.len())];
        if memchr(b'\r', line).is_some() {
            return None;
        }
        parse_digits(if self.is_strict { digits } else { digits.trim_ascii_end() }, 16)
    }
}

/// Parses the trailer section. `None`: there are no trailers.
fn parse_trailers(lines: &[u8]) -> Result<Option<Box<HeaderMap>>, Http1ParseError> {
    let mut space = [httparse::EMPTY_HEADER; MAX_TRAILERS];
    let parsed =
        httparse::parse_headers(lines, &mut space).map_err(|_| Http1ParseError::InvalidChunks)?;
    let httparse::Status::Complete((_, headers)) = parsed else {
        return Err(Http1ParseError::InvalidChunks);
    };
    let map = fields(headers, HeaderValue::from_bytes).ok_or(Http1ParseError::InvalidChunks)?;
    Ok(Some(map).filter(|map| !map.is_empty()).map(Box::new))
}

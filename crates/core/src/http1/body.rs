//! The body of a request or an answer, out of the bytes that frame it.

use super::{Unsound, fields, number};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use memchr::memchr;

/// What is still to come of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunks(Chunks),
    /// Whatever comes before the server closes.
    UntilClose,
}

/// Where in a chunked body the reading is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    part: Part,
    /// What other servers may read in another way is unsound.
    is_strict: bool,
    /// What came of the line that is being read, or of all trailers.
    line: Vec<u8>,
    trailers: Option<Box<HeaderMap>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Size,
    /// Bytes that are left of a chunk.
    Data(u64),
    /// The line end behind a chunk.
    End,
    Trailers,
    Over,
}

/// Longest line of a chunk's size and extensions, and longest trailers, in bytes.
const LONGEST: usize = 16 << 10;
/// Most trailers.
const MOST_TRAILERS: usize = 64;

// === impl Body ===

impl Body {
    /// One without bytes.
    pub const fn empty() -> Self {
        Self::Length(0)
    }

    /// One in chunks, before the first.
    pub const fn chunked() -> Self {
        Self::Chunks(Chunks::new(false))
    }

    /// One in chunks in which no size has blanks behind it.
    pub const fn strictly_chunked() -> Self {
        Self::Chunks(Chunks::new(true))
    }

    /// Nothing more comes.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunks(chunks) => chunks.part == Part::Over,
            Self::UntilClose => false,
        }
    }

    /// How many bytes are left, if the head told.
    pub fn left(&self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(*left),
            Self::Chunks(_) | Self::UntilClose => None,
        }
    }

    /// Moves what `bytes` have of the body to the end of `data`. Gives how many of them belong to it:
    /// what is behind them is none of this answer.
    pub fn read(&mut self, bytes: &[u8], data: &mut BytesMut) -> Result<usize, Unsound> {
        match self {
            Self::Length(left) => {
                let count = (*left).min(bytes.len() as u64);
                *left -= count;
                data.put_slice(&bytes[..count as usize]);
                Ok(count as usize)
            }
            Self::Chunks(chunks) => chunks.read(bytes, data),
            Self::UntilClose => {
                data.put_slice(bytes);
                Ok(bytes.len())
            }
        }
    }

    /// Takes what `bytes` have of the body from their beginning, if it is framed by its length without
    /// a copy.
    pub fn take(&mut self, bytes: &mut Bytes) -> Result<Bytes, Unsound> {
        if let Self::Length(left) = self {
            let count = (*left).min(bytes.len() as u64);
            *left -= count;
            return Ok(bytes.split_to(count as usize));
        }
        let mut data = BytesMut::with_capacity(bytes.len());
        let count = self.read(bytes, &mut data)?;
        bytes.advance(count);
        Ok(data.freeze())
    }

    /// Trailers came behind it that have not been taken.
    pub fn has_trailers(&self) -> bool {
        matches!(self, Self::Chunks(Chunks { trailers: Some(_), .. }))
    }

    /// The trailers of a body that is over.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        let Self::Chunks(chunks) = self else { return None };
        chunks.trailers.take().map(|trailers| *trailers)
    }
}

// === impl Chunks ===

impl Chunks {
    const fn new(is_strict: bool) -> Self {
        Self { part: Part::Size, is_strict, line: Vec::new(), trailers: None }
    }

    fn read(&mut self, bytes: &[u8], data: &mut BytesMut) -> Result<usize, Unsound> {
        let mut at = 0;
        while at < bytes.len() && self.part != Part::Over {
            let rest = &bytes[at..];
            if let Part::Data(left) = &mut self.part {
                let count = (*left).min(rest.len() as u64);
                *left -= count;
                data.put_slice(&rest[..count as usize]);
                at += count as usize;
                if *left == 0 {
                    self.part = Part::End;
                }
                continue;
            }
            let end = memchr(b'\n', rest);
            let count = end.map_or(rest.len(), |end| end + 1);
            at += count;
            if self.line.len() + count > LONGEST {
                return Err(Unsound::Chunks);
            }
            if end.is_some() {
                self.end_line(&rest[..count])?;
            } else {
                self.line.extend_from_slice(rest);
            }
        }
        Ok(at)
    }

    /// A line ends with `end`, after what was kept of it.
    fn end_line(&mut self, end: &[u8]) -> Result<(), Unsound> {
        if self.part == Part::Trailers {
            self.line.extend_from_slice(end);
            if !self.line.ends_with(b"\r\n") {
                return Err(Unsound::Chunks);
            }
            if self.line == b"\r\n" || self.line.ends_with(b"\r\n\r\n") {
                self.part = Part::Over;
                self.trailers = trailers(&std::mem::take(&mut self.line))?;
            }
            return Ok(());
        }
        let mut kept = std::mem::take(&mut self.line);
        let line = if kept.is_empty() {
            end
        } else {
            kept.extend_from_slice(end);
            &kept
        };
        let line = line.strip_suffix(b"\r\n").ok_or(Unsound::Chunks)?;
        self.part = match self.part {
            Part::End if line.is_empty() => Part::Size,
            Part::Size => match self.size(line).ok_or(Unsound::Chunks)? {
                0 => Part::Trailers,
                size => Part::Data(size),
            },
            _ => return Err(Unsound::Chunks),
        };
        Ok(())
    }

    /// Hexadecimal digits, and extensions that mean nothing here.
    fn size(&self, line: &[u8]) -> Option<u64> {
        let digits = &line[..memchr(b';', line).unwrap_or(line.len())];
        if memchr(b'\r', line).is_some() {
            return None;
        }
        number(if self.is_strict { digits } else { digits.trim_ascii_end() }, 16)
    }
}

/// `None`: there are none.
fn trailers(lines: &[u8]) -> Result<Option<Box<HeaderMap>>, Unsound> {
    let mut space = [httparse::EMPTY_HEADER; MOST_TRAILERS];
    let parsed = httparse::parse_headers(lines, &mut space).map_err(|_| Unsound::Chunks)?;
    let httparse::Status::Complete((_, found)) = parsed else { return Err(Unsound::Chunks) };
    let map = fields(found, HeaderValue::from_bytes).ok_or(Unsound::Chunks)?;
    Ok(Some(map).filter(|map| !map.is_empty()).map(Box::new))
}

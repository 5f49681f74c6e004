//! Where a request on an HTTP/1.1 connection ends and the next one begins, read in one way only:
//! CRLF ends a line, one `Content-Length` of digits or one `Transfer-Encoding: chunked` frames a
//! body, and nothing else does. What could be read in two ways is how requests are smuggled past
//! proxies.

use memchr::memchr;

/// Follows the bytes of a client, however they are cut.
#[derive(Debug)]
pub(super) struct Framing {
    part: Part,
    /// The beginning of the line that is being read, as far as it matters.
    line: Vec<u8>,
    /// The last byte of the line so far.
    last: u8,
    length: Option<u64>,
    is_chunked: bool,
    /// How much of HTTP/2's preface has come. `None`: it is HTTP/1.
    preface: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The request line, and blank lines before it.
    Request,
    Headers,
    /// Bytes that are left of a body of known length.
    Body(u64),
    ChunkSize,
    /// Bytes that are left of a chunk.
    Chunk(u64),
    /// The line end behind a chunk.
    ChunkEnd,
    Trailers,
    /// Nothing that is read here: HTTP/2, or what hyper refuses.
    Other,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing: go on.
    More,
    /// The request ends before this position.
    End(usize),
    /// Its head can be read in two ways, or in none. Changed to NUL, the byte at this position makes
    /// hyper refuse it.
    Unsound(usize),
    /// So can its body, at this position.
    Broken(usize),
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of the preface's first line without the line feed.
const PREFACE_LINE: usize = 15;
/// Longest line that is looked into: longer ones are no framing, or a strange one.
const LONGEST: usize = 80;

impl Default for Framing {
    fn default() -> Self {
        Self {
            part: Part::Request,
            line: Vec::new(),
            last: 0,
            length: None,
            is_chunked: false,
            preface: Some(0),
        }
    }
}

// === impl Framing ===

impl Framing {
    /// Reads on, up to the end of a request.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Found {
        if self.is_preface(bytes) {
            return Found::More;
        }
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.part {
                Part::Other => return Found::More,
                Part::Body(left) | Part::Chunk(left) => {
                    let skipped = (*left).min(rest.len() as u64);
                    *left -= skipped;
                    at += skipped as usize;
                    match self.part {
                        Part::Body(0) => return self.end(at),
                        Part::Chunk(0) => self.part = Part::ChunkEnd,
                        _ => {}
                    }
                }
                _ => {
                    let Some(length) = memchr(b'\n', rest) else {
                        self.keep(rest);
                        return Found::More;
                    };
                    self.keep(&rest[..length]);
                    at += length + 1;
                    match self.end_line() {
                        Some(Part::Request) if self.part != Part::Request => return self.end(at),
                        Some(next) => self.part = next,
                        None => {
                            let is_head = matches!(self.part, Part::Request | Part::Headers);
                            self.part = Part::Other;
                            let found = if is_head { Found::Unsound } else { Found::Broken };
                            return found(at - 1);
                        }
                    }
                    self.line.clear();
                }
            }
        }
        Found::More
    }

    /// Whether a request of HTTP/1 has ended and nothing of the next one has come.
    pub(super) fn is_between(&self) -> bool {
        self.part == Part::Request && self.line.is_empty()
    }

    /// Whether the head of a request of HTTP/1 has begun and not ended.
    pub(super) fn is_in_head(&self) -> bool {
        match self.part {
            Part::Request => !self.line.is_empty(),
            part => part == Part::Headers,
        }
    }

    /// Whether this may still be, or is, the beginning of HTTP/2.
    fn is_preface(&mut self, bytes: &[u8]) -> bool {
        let Some(before) = self.preface else { return false };
        let rest = &PREFACE[before..];
        let same = rest.iter().zip(bytes).take_while(|(ours, theirs)| ours == theirs).count();
        if same == rest.len() {
            self.part = Part::Other;
        } else if same == bytes.len() {
            self.preface = Some(before + same);
            return true;
        } else if before > PREFACE_LINE {
            // Its first line is no request of HTTP/1.
            self.part = Part::Other;
        }
        self.preface = None;
        self.keep(&PREFACE[..before.min(PREFACE_LINE)]);
        self.part == Part::Other
    }

    fn keep(&mut self, of_line: &[u8]) {
        let room = LONGEST - self.line.len();
        self.line.extend_from_slice(&of_line[..room.min(of_line.len())]);
        self.last = of_line.last().copied().unwrap_or(self.last);
    }

    fn end(&mut self, at: usize) -> Found {
        *self = Self { preface: None, line: std::mem::take(&mut self.line), ..Self::default() };
        self.line.clear();
        Found::End(at)
    }

    /// What comes behind the line; [`Part::Request`] behind a whole request. `None`: it is unsound.
    fn end_line(&mut self) -> Option<Part> {
        if self.line.is_empty() || self.last != b'\r' {
            return None;
        }
        let is_blank = self.line == b"\r";
        match self.part {
            // Blank lines may stand before a request, and one stands behind trailers.
            Part::Request | Part::Trailers if is_blank => Some(Part::Request),
            Part::Request => Some(Part::Headers),
            Part::Headers if !is_blank => self.header(),
            Part::Headers if self.is_chunked => Some(Part::ChunkSize),
            Part::Headers => match self.length {
                None | Some(0) => Some(Part::Request),
                Some(length) => Some(Part::Body(length)),
            },
            Part::ChunkSize => match chunk_size(&self.line)? {
                0 => Some(Part::Trailers),
                size => Some(Part::Chunk(size)),
            },
            Part::ChunkEnd => is_blank.then_some(Part::ChunkSize),
            part => Some(part),
        }
    }

    /// A body is framed once, by one header.
    fn header(&mut self) -> Option<Part> {
        let colon = memchr(b':', &self.line).unwrap_or(self.line.len());
        let (name, value) = self.line.split_at(colon);
        let is_length = name.eq_ignore_ascii_case(b"content-length");
        if !is_length && !name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Some(Part::Headers);
        }
        if self.length.is_some() || self.is_chunked || self.line.len() == LONGEST {
            return None;
        }
        let value = value.get(1..)?.trim_ascii();
        if is_length {
            self.length = Some(decimal(value)?);
        } else {
            self.is_chunked = true;
        }
        let is_chunked_or_length = is_length || value.eq_ignore_ascii_case(b"chunked");
        is_chunked_or_length.then_some(Part::Headers)
    }
}

/// Digits, and nothing but digits.
fn decimal(text: &[u8]) -> Option<u64> {
    let is_digits = text.iter().all(u8::is_ascii_digit);
    str::from_utf8(text).ok().filter(|_| is_digits)?.parse().ok()
}

/// Hexadecimal digits, and extensions that mean nothing here.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let end = memchr(b';', line).unwrap_or(line.len());
    let digits = if end < line.len() { &line[..end] } else { line.strip_suffix(b"\r")? };
    let is_digits = digits.iter().all(u8::is_ascii_hexdigit);
    let digits = str::from_utf8(digits).ok().filter(|_| is_digits)?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found first, and where in all of it, when it comes in pieces of this length.
    fn found(text: &str, piece: usize) -> Found {
        let mut framing = Framing::default();
        for (number, bytes) in text.as_bytes().chunks(piece).enumerate() {
            match framing.read(bytes) {
                Found::More => {}
                Found::End(at) => return Found::End(number * piece + at),
                Found::Unsound(at) => return Found::Unsound(number * piece + at),
                Found::Broken(at) => return Found::Broken(number * piece + at),
            }
        }
        Found::More
    }

    fn in_any_pieces(text: &str) -> Found {
        let whole = found(text, text.len());
        for piece in 1..text.len() {
            assert_eq!(found(text, piece), whole, "{text:?} in pieces of {piece}");
        }
        whole
    }

    #[test]
    fn a_request_ends_where_its_framing_says() {
        for request in [
            "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "P / HTTP/1.1\r\nContent-Length: \t2 \r\n\r\n{}",
            "P / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
            "P / HTTP/1.1\r\nx: content-length: 1\r\nTRANSFER-encoding: Chunked\r\n\r\n\
             2;a=\"b\"\r\n\n\r\r\nA\r\n0123456789\r\n0\r\ncontent-length: 7\r\n\r\n",
            "PRI / HTTP/1.1\r\ncontent-length: 1\r\n\r\n.",
        ] {
            let next = format!("{request}GET /next HTTP/1.1\r\n\r\n");
            assert_eq!(in_any_pieces(&next), Found::End(request.len()), "{request:?}");
        }
    }

    #[test]
    fn a_head_that_could_be_read_in_two_ways_is_unsound() {
        let head = "P / HTTP/1.1\r\nhost: a\r\n";
        for rest in [
            "content-length: 2\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ncontent-length: 2\r\n",
            "content-length: 2\r\ncontent-length: 2\r\n",
            "content-length: 2, 2\r\n",
            "content-length: +2\r\n",
            "content-length:\r\n",
            "content-length: 18446744073709551616\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: \x0bchunked\r\n",
            "x: a\n",
            "\n",
        ] {
            let text = format!("{head}{rest}");
            assert_eq!(in_any_pieces(&text), Found::Unsound(text.len() - 1), "{rest:?}");
        }
        let spaces = format!("{head}content-length: {}2\r\n", " ".repeat(LONGEST));
        assert_eq!(in_any_pieces(&spaces), Found::Unsound(spaces.len() - 1));
    }

    #[test]
    fn a_body_that_could_be_read_in_two_ways_is_broken() {
        let head = "P / HTTP/1.1\r\nhost: a\r\n";
        for rest in [
            "transfer-encoding: chunked\r\n\r\n2\n",
            "transfer-encoding: chunked\r\n\r\n2 \r\n",
            "transfer-encoding: chunked\r\n\r\n0x2\r\n",
            "transfer-encoding: chunked\r\n\r\n+2\r\n",
            "transfer-encoding: chunked\r\n\r\n\r\n",
            "transfer-encoding: chunked\r\n\r\n10000000000000000\r\n",
            "transfer-encoding: chunked\r\n\r\n2;a\n",
            "transfer-encoding: chunked\r\n\r\n2\r\n{}x\r\n",
            "transfer-encoding: chunked\r\n\r\n2\r\n{}\n",
            "transfer-encoding: chunked\r\n\r\n0\r\nx: a\n",
        ] {
            let text = format!("{head}{rest}");
            assert_eq!(in_any_pieces(&text), Found::Broken(text.len() - 1), "{rest:?}");
        }
    }

    #[test]
    fn http_2_is_left_alone() {
        let preface = str::from_utf8(PREFACE).unwrap();
        let frames = format!("{preface}P / HTTP/1.1\ncontent-length: 1\r\ncontent-length: 1\r\n");
        assert_eq!(in_any_pieces(&frames), Found::More);
    }
}

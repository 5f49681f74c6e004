//! Decoding of a body with a `Content-Encoding` in small steps, so that the code that reads it can limit its
//! length.

use bytes::{Buf, Bytes};
use flate2::bufread::{GzDecoder, ZlibDecoder};
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, ErrorKind, Read};
use std::mem;

/// The encodings of request bodies that the gateway decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentEncoding {
    /// gzip (RFC 1952), with several members.
    Gzip,
    /// The zlib format (RFC 1950), which HTTP calls `deflate`.
    Deflate,
    /// Zstandard (RFC 8878) with a window of at most 8 MiB (RFC 9659).
    Zstd,
}

/// Decodes one body. Many encoded bytes can decode to nothing, so each read does a bounded amount of work. A
/// read that gave no bytes yet fails with [`ErrorKind::Interrupted`]: the code that reads yields to other tasks
/// and reads again.
pub enum ContentDecoder {
    /// Decodes gzip.
    Gzip(GzipDecoder),
    /// A body in the zlib format.
    Deflate(ZlibDecoder<Portions>),
    /// A body of one Zstandard frame.
    Zstd(ZstdDecoder),
}

/// Decodes the members of a gzip file.
pub struct GzipDecoder {
    member: GzDecoder<Portions>,
    /// Number of the current member, counted from 1.
    number: usize,
}

/// Decodes one Zstandard frame.
pub struct ZstdDecoder {
    encoded: Portions,
    frame: Box<FrameDecoder>,
    window: usize,
    /// Maximum number of blocks of the frame.
    max_blocks: usize,
}

/// An encoded body that is read in portions. After `PORTION_BYTES`, a read fails with [`ErrorKind::WouldBlock`]
/// until `allow` permits the next portion.
#[derive(Default)]
pub struct Portions {
    rest: Bytes,
    /// Bytes of this portion that may still be read.
    allowed: usize,
}

/// Maximum number of encoded bytes that one read decodes.
const PORTION_BYTES: usize = 4 << 10;
/// Maximum number of members of a gzip file. An empty member has only 20 bytes, but needs a new decoder.
const MAX_GZIP_MEMBERS: usize = 64;
/// A Zstandard frame may have this number of blocks, and one more for each `LEAST_ZSTD_BLOCK_BYTES` of the
/// body. Encoders fill blocks of up to 128 KiB.
const FREE_ZSTD_BLOCKS: usize = 1_024;
const LEAST_ZSTD_BLOCK_BYTES: usize = 64;
/// Maximum number of blocks that one read decodes.
const BLOCKS_AT_ONCE: usize = 16;

/// Maximum window that a decoder of HTTP content must support (RFC 9659).
const MAX_ZSTD_WINDOW: u64 = 8 << 20;

impl ContentEncoding {
    /// The encodings that [`Self::of`] accepts, as the value of `Accept-Encoding`.
    pub const ACCEPTED: HeaderValue = HeaderValue::from_static("gzip, deflate, zstd, identity");

    /// The encoding of a body. `None`: the body is not encoded. The error is the value of `Content-Encoding`,
    /// if it names an unknown encoding or several encodings.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, String> {
        let mut found = None;
        let values = headers
            .get_all(CONTENT_ENCODING)
            .iter()
            .map(HeaderValue::as_bytes);
        for name in values.flat_map(|value| value.split(|byte| *byte == b',')) {
            let name = name.trim_ascii();
            if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
                continue;
            }
            let unknown = || String::from_utf8_lossy(name).into_owned();
            let encoding = Self::of_name(name).ok_or_else(unknown)?;
            if found.replace(encoding).is_some() {
                return Err(unknown());
            }
        }
        Ok(found)
    }

    fn of_name(name: &[u8]) -> Option<Self> {
        match name.to_ascii_lowercase().as_slice() {
            b"gzip" | b"x-gzip" => Some(Self::Gzip),
            b"deflate" => Some(Self::Deflate),
            b"zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The word for `Content-Encoding`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
        }
    }

    /// A decoder of `body`. Fails if `body` does not begin as this encoding requires.
    pub fn decoder(self, body: Bytes) -> io::Result<ContentDecoder> {
        Ok(match self {
            Self::Gzip => ContentDecoder::Gzip(GzipDecoder {
                member: GzDecoder::new(Portions::new(body)),
                number: 1,
            }),
            Self::Deflate => ContentDecoder::Deflate(ZlibDecoder::new(Portions::new(body))),
            Self::Zstd => ContentDecoder::Zstd(ZstdDecoder::new(body)?),
        })
    }
}

impl ContentDecoder {
    /// Maximum number of decoded bytes that the decoder holds before it returns them.
    pub const fn window(&self) -> usize {
        match self {
            Self::Gzip(_) | Self::Deflate(_) => 32 << 10,
            Self::Zstd(decoder) => decoder.window,
        }
    }
}

impl ZstdDecoder {
    fn new(body: Bytes) -> io::Result<Self> {
        // The frame descriptor follows the magic number of 4 bytes. The window descriptor comes next, unless
        // the frame is a single segment (RFC 8878, 3.1.1.1).
        let frame_descriptor = body.get(4).copied().unwrap_or_default();
        let window_descriptor = body.get(5).copied().unwrap_or_default();
        let max_blocks = FREE_ZSTD_BLOCKS + body.len() / LEAST_ZSTD_BLOCK_BYTES;
        let mut encoded = Portions::all(body);
        let mut frame = Box::new(FrameDecoder::new());
        frame.set_max_window_size(MAX_ZSTD_WINDOW);
        frame.init(&mut encoded).map_err(io::Error::other)?;
        let is_single_segment = frame_descriptor & 0x20 != 0;
        let window = if is_single_segment {
            frame.content_size()
        } else {
            let base = 1_u64 << (10 + (window_descriptor >> 3));
            base + base / 8 * u64::from(window_descriptor & 7)
        };
        Ok(Self {
            encoded,
            frame,
            window: usize::try_from(window).unwrap_or(usize::MAX),
            max_blocks,
        })
    }
}

impl Read for ZstdDecoder {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        for _ in 0..BLOCKS_AT_ONCE {
            if self.frame.can_collect() > 0 || self.frame.is_finished() {
                break;
            }
            let one = BlockDecodingStrategy::UptoBlocks(1);
            let decoded = self.frame.decode_blocks(&mut self.encoded, one);
            decoded.map_err(io::Error::other)?;
        }
        if self.frame.blocks_decoded() > self.max_blocks {
            return Err(ErrorKind::InvalidData.into());
        }
        let length = self.frame.read(piece)?;
        if length > 0 {
            return Ok(length);
        }
        if !self.frame.is_finished() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let stated = self.frame.get_checksum_from_data();
        let is_damaged = stated.is_some() && stated != self.frame.get_calculated_checksum();
        // A body may have only one frame: millions of empty frames would cost time without data.
        if is_damaged || self.encoded.rest.has_remaining() {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(0)
    }
}

impl Read for GzipDecoder {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        loop {
            let length = self.member.read(piece)?;
            if length > 0 || !self.member.get_ref().rest.has_remaining() {
                return Ok(length);
            }
            self.number += 1;
            if self.number > MAX_GZIP_MEMBERS {
                return Err(ErrorKind::InvalidData.into());
            }
            let ended = mem::replace(&mut self.member, GzDecoder::new(Portions::default()));
            self.member = GzDecoder::new(ended.into_inner());
        }
    }
}

impl Read for ContentDecoder {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Self::Gzip(decoder) => {
                decoder.member.get_mut().allow();
                decoder.read(piece)
            }
            Self::Deflate(decoder) => {
                decoder.get_mut().allow();
                decoder.read(piece)
            }
            Self::Zstd(decoder) => decoder.read(piece),
        };
        read.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => ErrorKind::Interrupted.into(),
            _ => error,
        })
    }
}

impl Portions {
    fn new(body: Bytes) -> Self {
        Self {
            rest: body,
            allowed: PORTION_BYTES,
        }
    }

    fn all(body: Bytes) -> Self {
        Self {
            allowed: body.len(),
            rest: body,
        }
    }

    fn allow(&mut self) {
        self.allowed = PORTION_BYTES;
    }
}

impl BufRead for Portions {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.allowed == 0 && self.rest.has_remaining() {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(&self.rest[..self.rest.len().min(self.allowed)])
    }

    fn consume(&mut self, length: usize) {
        self.rest.advance(length);
        self.allowed -= length;
    }
}

impl Read for Portions {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let mut available = self.fill_buf()?;
        let length = available.read(piece)?;
        self.consume(length);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn of(values: &[&'static str]) -> Result<Option<ContentEncoding>, String> {
        let named = |value| (CONTENT_ENCODING, HeaderValue::from_static(value));
        ContentEncoding::of(&values.iter().copied().map(named).collect())
    }

    #[test]
    fn one_known_encoding_is_accepted_in_any_case() {
        for (values, expected) in [
            (&[][..], Ok(None)),
            (&["", "identity"], Ok(None)),
            (&["GZip"], Ok(Some(ContentEncoding::Gzip))),
            (&["x-gzip, identity"], Ok(Some(ContentEncoding::Gzip))),
            (&["deflate"], Ok(Some(ContentEncoding::Deflate))),
            (&["zstd"], Ok(Some(ContentEncoding::Zstd))),
            (&["br"], Err("br".to_owned())),
            (&["gzip, gzip"], Err("gzip".to_owned())),
            (&["gzip", "deflate"], Err("deflate".to_owned())),
        ] {
            assert_eq!(of(values), expected, "{values:?}");
        }
    }

    #[test]
    fn an_encoded_body_is_decoded_or_an_error() {
        let text = b"some text ".repeat(10_000);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&text).unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(&text).unwrap();
        for (encoding, encoded) in [
            (ContentEncoding::Gzip, gzip.finish().unwrap()),
            (ContentEncoding::Deflate, zlib.finish().unwrap()),
            (ContentEncoding::Zstd, zstd(&text)),
        ] {
            let decode = |bytes: &[u8]| {
                let mut decoded = Vec::new();
                let body = Bytes::copy_from_slice(bytes);
                encoding.decoder(body)?.read_to_end(&mut decoded)?;
                io::Result::Ok(decoded)
            };
            assert_eq!(decode(&encoded).unwrap(), text);
            assert!(decode(b"no archive").is_err());
            // The zlib decoder does not report a missing end. The JSON parser rejects the half body later.
            let half = decode(&encoded[..encoded.len() / 2]);
            assert!(half.is_err() || encoding == ContentEncoding::Deflate);
        }
    }

    /// Decodes a body until its end or an error. Returns the number of reads, and whether the decoding
    /// succeeded.
    fn reads(encoding: ContentEncoding, encoded: Vec<u8>) -> (usize, bool) {
        let mut decoder = encoding.decoder(encoded.into()).unwrap();
        let mut piece = [0; 1_024];
        for read in 1.. {
            match decoder.read(&mut piece) {
                Ok(0) => return (read, true),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return (read, false),
            }
        }
        unreachable!()
    }

    #[test]
    fn input_that_decodes_to_nothing_is_bounded() {
        let mut member = GzEncoder::new(Vec::new(), Compression::fast());
        member.write_all(b"").unwrap();
        let member = member.finish().unwrap();
        let (_, is_decoded) = reads(ContentEncoding::Gzip, member.repeat(64));
        assert!(is_decoded);
        let (read, is_decoded) = reads(ContentEncoding::Gzip, member.repeat(100_000));
        assert!(read < 10 && !is_decoded, "{read}");
        // A frame whose blocks are all empty.
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x50];
        frame.extend_from_slice(&[0, 0, 0].repeat(100_000));
        let (read, is_decoded) = reads(ContentEncoding::Zstd, frame);
        assert!(read > 100 && read < 1_000 && !is_decoded, "{read}");
        // Deflate blocks of the type `stored`, without content.
        let mut blocks = vec![0x78, 1];
        blocks.extend_from_slice(&[0, 0, 0, 0xff, 0xff].repeat(100_000));
        let (read, _) = reads(ContentEncoding::Deflate, blocks);
        assert!(read > 100, "{read}");
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    #[test]
    fn a_zstd_window_is_known_and_bounded() {
        let frame = |window: u8| Bytes::from(vec![0x28, 0xb5, 0x2f, 0xfd, 0, window, 1, 0, 0]);
        let window = |field| {
            let decoder = ContentEncoding::Zstd.decoder(frame(field)).ok()?;
            Some(decoder.window())
        };
        assert_eq!(window(0), Some(1 << 10));
        assert_eq!(window(11 << 3 | 4), Some(3 << 20));
        assert_eq!(window(13 << 3), Some(8 << 20));
        assert_eq!(window(13 << 3 | 1), None);
    }

    #[test]
    fn bytes_after_a_zstd_frame_are_an_error() {
        let mut two = zstd(b"{}");
        two.extend_from_slice(&zstd(b"{}"));
        let mut decoder = ContentEncoding::Zstd.decoder(two.into()).unwrap();
        assert!(decoder.read_to_end(&mut Vec::new()).is_err());
    }
}

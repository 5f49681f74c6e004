//! Decoding of a body with a `Content-Encoding`, piece by piece, so that a caller can limit its length.

use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue};
use std::io::{self, Read};

/// The encodings of request bodies that the gateway decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentEncoding {
    /// gzip (RFC 1952).
    Gzip,
    /// The zlib format (RFC 1950), which HTTP calls `deflate`.
    Deflate,
}

/// Decodes one body.
pub enum ContentDecoder {
    /// A body in gzip.
    Gzip(MultiGzDecoder<Reader<Bytes>>),
    /// A body in the zlib format.
    Deflate(ZlibDecoder<Reader<Bytes>>),
}

impl ContentEncoding {
    /// The encodings that [`Self::of`] accepts, as the value of `Accept-Encoding`.
    pub const ACCEPTED: HeaderValue = HeaderValue::from_static("gzip, deflate, identity");

    /// The encoding of a body. `None`: the body is not encoded. Fails with the value of `Content-Encoding` for
    /// an unknown encoding, and for several encodings.
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
            let is_gzip =
                name.eq_ignore_ascii_case(b"gzip") || name.eq_ignore_ascii_case(b"x-gzip");
            let encoding = if is_gzip { Self::Gzip } else { Self::Deflate };
            let is_known = is_gzip || name.eq_ignore_ascii_case(b"deflate");
            if !is_known || found.replace(encoding).is_some() {
                return Err(String::from_utf8_lossy(name).into_owned());
            }
        }
        Ok(found)
    }

    /// The name of the encoding.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// A decoder of `body`.
    pub fn decoder(self, body: Bytes) -> ContentDecoder {
        match self {
            Self::Gzip => ContentDecoder::Gzip(MultiGzDecoder::new(body.reader())),
            Self::Deflate => ContentDecoder::Deflate(ZlibDecoder::new(body.reader())),
        }
    }
}

impl Read for ContentDecoder {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(piece),
            Self::Deflate(decoder) => decoder.read(piece),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
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
            (&["zstd"], Err("zstd".to_owned())),
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
        ] {
            let decode = |bytes: &[u8]| {
                let mut decoded = Vec::new();
                encoding
                    .decoder(Bytes::copy_from_slice(bytes))
                    .read_to_end(&mut decoded)?;
                io::Result::Ok(decoded)
            };
            assert_eq!(decode(&encoded).unwrap(), text);
            assert!(decode(b"no archive").is_err());
            // The zlib format does not show that its end is missing; the half body is then no JSON.
            let half = decode(&encoded[..encoded.len() / 2]);
            assert!(half.is_err() || encoding == ContentEncoding::Deflate);
        }
    }
}

//! Finds the head of a request in bytes that arrive in several reads. The work is linear in the number of
//! bytes: empty lines before the head are dropped as they arrive, and the head is parsed only when it can be
//! complete.

use super::fields::Http1ParseError;
use super::request_head::{HeadLimits, RequestHead, parse_request_head};
use super::response_head::has_blank_line;
use bytes::{Buf, Bytes};

/// Progress of the search for the end of a head on one connection.
#[derive(Debug, Default)]
pub struct HeadScanner {
    /// Number of bytes at the beginning of the buffer that contain no complete head.
    searched_bytes: usize,
    /// Number of bytes of empty lines that were dropped before the head. They count towards the
    /// length limit of the head.
    dropped_bytes: usize,
}

impl HeadScanner {
    /// Parses the head of a request and removes it from `bytes`. `None`: the head is incomplete.
    ///
    /// Empty lines before the head are removed from `bytes` (RFC 9112, section 2.2).
    pub fn read_head(
        &mut self,
        bytes: &mut Bytes,
        limits: HeadLimits,
    ) -> Result<Option<Box<RequestHead>>, Http1ParseError> {
        self.drop_empty_lines(bytes);
        if bytes.is_empty() {
            let is_too_long = self.dropped_bytes > limits.max_bytes;
            return if is_too_long {
                Err(Http1ParseError::HeadTooLong)
            } else {
                Ok(None)
            };
        }
        // A line feed without CR before the head would look like the end of a head.
        if bytes[0] == b'\n' {
            return Err(Http1ParseError::InvalidHead);
        }
        let limits = HeadLimits {
            max_bytes: limits.max_bytes.saturating_sub(self.dropped_bytes),
            ..limits
        };
        let may_be_complete = self.may_be_complete(bytes, limits);
        self.searched_bytes = bytes.len();
        if !may_be_complete {
            return Ok(None);
        }
        let head = parse_request_head(bytes, limits)?;
        if let Some(head) = &head {
            bytes.advance(head.length);
            *self = Self::default();
        }
        Ok(head)
    }

    fn drop_empty_lines(&mut self, bytes: &mut Bytes) {
        while bytes.starts_with(b"\r\n") {
            bytes.advance(2);
            (self.searched_bytes, self.dropped_bytes) = (0, self.dropped_bytes + 2);
        }
    }

    /// Whether to parse the head now. True in three cases. The bytes are the first bytes of a head, and can
    /// already be invalid. The new bytes complete an empty line, which can be the end of the head. The head
    /// exceeds its length limit and must be rejected.
    fn may_be_complete(&self, bytes: &Bytes, limits: HeadLimits) -> bool {
        let new_bytes = bytes.len().saturating_sub(self.searched_bytes);
        let has_new_information = self.searched_bytes == 0 || has_blank_line(bytes, new_bytes);
        (new_bytes > 0 && has_new_information) || bytes.len() > limits.max_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;

    const LIMITS: HeadLimits = HeadLimits {
        max_bytes: 64 << 10,
        max_headers: 100,
    };

    /// A connection whose bytes arrive one by one.
    #[derive(Default)]
    struct ByteByByteConnection {
        scanner: HeadScanner,
        bytes: Bytes,
        /// Number of bytes in calls of the parser that did not empty the buffer.
        parsed_bytes: usize,
    }

    impl ByteByByteConnection {
        fn receive(&mut self, byte: u8) -> Result<Option<Box<RequestHead>>, Http1ParseError> {
            let mut bytes = BytesMut::from(&self.bytes[..]);
            bytes.extend_from_slice(&[byte]);
            self.bytes = bytes.freeze();
            let may_parse = self.scanner.may_be_complete(&self.bytes, LIMITS);
            let buffered_bytes = self.bytes.len();
            let result = self.scanner.read_head(&mut self.bytes, LIMITS);
            if may_parse && !self.bytes.is_empty() {
                self.parsed_bytes += buffered_bytes;
            }
            result
        }
    }

    #[test]
    fn empty_lines_before_a_head_are_dropped() {
        let mut connection = ByteByByteConnection::default();
        for _ in 0..10_000 {
            assert!(connection.receive(b'\r').unwrap().is_none());
            assert!(connection.receive(b'\n').unwrap().is_none());
            assert!(
                connection.bytes.is_empty(),
                "an empty line is dropped when it has come"
            );
        }
        assert!(
            connection.parsed_bytes <= 2 * 10_000,
            "{} bytes parsed",
            connection.parsed_bytes
        );
        let request = b"GET / HTTP/1.1\r\n\r\n";
        let mut heads = request
            .iter()
            .map(|byte| connection.receive(*byte).unwrap());
        assert!(heads.find_map(|head| head).is_some());
    }

    #[test]
    fn a_bytewise_head_is_parsed_twice_only() {
        let head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(30_000));
        let mut connection = ByteByByteConnection::default();
        let mut parsed = None;
        for byte in head.bytes() {
            assert!(parsed.is_none());
            parsed = connection.receive(byte).unwrap();
        }
        assert_eq!(parsed.unwrap().length, head.len());
        let parsed_bytes = connection.parsed_bytes;
        assert!(
            parsed_bytes <= head.len() + 1,
            "{parsed_bytes} bytes parsed"
        );
    }

    #[test]
    fn empty_lines_count_towards_the_length_limit() {
        let mut connection = ByteByByteConnection::default();
        let lines = b"\r\n".repeat(LIMITS.max_bytes / 2 + 1);
        let error = lines
            .iter()
            .find_map(|byte| connection.receive(*byte).err());
        assert_eq!(error, Some(Http1ParseError::HeadTooLong));
        let mut scanner = HeadScanner::default();
        let mut bytes = Bytes::from([&lines[..], b"GET / HTTP/1.1\r\n\r\n"].concat());
        let error = scanner.read_head(&mut bytes, LIMITS).unwrap_err();
        assert_eq!(error, Http1ParseError::HeadTooLong);
    }

    #[test]
    fn a_bare_line_feed_is_rejected_at_once() {
        for start in ["\n", "\r\n\n"] {
            let mut connection = ByteByByteConnection::default();
            let error = start
                .bytes()
                .find_map(|byte| connection.receive(byte).err());
            assert_eq!(error, Some(Http1ParseError::InvalidHead), "{start:?}");
        }
    }
}

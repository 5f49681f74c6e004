//! Finds the head of a request in bytes that come piece by piece, with work that is linear in the
//! bytes: empty lines before the head are dropped as they come, and the head is parsed only when it
//! may be complete.

use super::request_head::{Most, RequestHead, request_head};
use super::{Unsound, has_blank_line};
use bytes::{Buf, Bytes};

/// How far the bytes of a connection have been searched for the end of a head.
#[derive(Debug, Default)]
pub struct HeadScan {
    /// Bytes at the beginning of the buffer that hold no complete head.
    searched: usize,
    /// Bytes of empty lines that were dropped before the head. They count towards the limit.
    dropped: usize,
}

impl HeadScan {
    /// Reads the head of a request from `bytes`, and advances them past it. `None`: more must come.
    ///
    /// Empty lines before the head are removed from `bytes` (RFC 9112, section 2.2).
    pub fn read(&mut self, bytes: &mut Bytes, most: Most) -> Result<Option<RequestHead>, Unsound> {
        self.drop_empty_lines(bytes);
        if bytes.is_empty() {
            let is_too_long = self.dropped > most.bytes;
            return if is_too_long { Err(Unsound::TooLong) } else { Ok(None) };
        }
        // Each line feed alone before the head would look like the end of a head.
        if bytes[0] == b'\n' {
            return Err(Unsound::Head);
        }
        let most = Most { bytes: most.bytes.saturating_sub(self.dropped), ..most };
        let may_be_complete = self.may_be_complete(bytes, most);
        self.searched = bytes.len();
        if !may_be_complete {
            return Ok(None);
        }
        let head = request_head(bytes, most)?;
        if let Some(head) = &head {
            bytes.advance(head.length);
            *self = Self::default();
        }
        Ok(head)
    }

    fn drop_empty_lines(&mut self, bytes: &mut Bytes) {
        while bytes.starts_with(b"\r\n") {
            bytes.advance(2);
            (self.searched, self.dropped) = (0, self.dropped + 2);
        }
    }

    /// Whether parsing can find something new: the first piece may be wrong from its first byte, a
    /// head ends with an empty line, and one that is too long is refused before its end.
    fn may_be_complete(&self, bytes: &Bytes, most: Most) -> bool {
        let count = bytes.len().saturating_sub(self.searched);
        let is_news = self.searched == 0 || has_blank_line(bytes, count);
        (count > 0 && is_news) || bytes.len() > most.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;

    const MOST: Most = Most { bytes: 64 << 10, headers: 100 };

    /// A connection on which bytes come one by one.
    #[derive(Default)]
    struct Slow {
        scan: HeadScan,
        bytes: Bytes,
        /// How many bytes were given to the parser in all.
        parsed: usize,
    }

    impl Slow {
        fn receive(&mut self, byte: u8) -> Result<Option<RequestHead>, Unsound> {
            let mut bytes = BytesMut::from(&self.bytes[..]);
            bytes.extend_from_slice(&[byte]);
            self.bytes = bytes.freeze();
            let may_parse = self.scan.may_be_complete(&self.bytes, MOST);
            let before = self.bytes.len();
            let read = self.scan.read(&mut self.bytes, MOST);
            if may_parse && !self.bytes.is_empty() {
                self.parsed += before;
            }
            read
        }
    }

    #[test]
    fn empty_lines_before_a_head_leave_nothing_behind_that_is_parsed_again() {
        let mut slow = Slow::default();
        for _ in 0..10_000 {
            assert!(slow.receive(b'\r').unwrap().is_none());
            assert!(slow.receive(b'\n').unwrap().is_none());
            assert!(slow.bytes.is_empty(), "an empty line is dropped when it has come");
        }
        assert!(slow.parsed <= 2 * 10_000, "{} bytes parsed", slow.parsed);
        let mut heads = b"GET / HTTP/1.1\r\n\r\n".iter().map(|byte| slow.receive(*byte).unwrap());
        assert!(heads.find_map(|head| head).is_some());
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_is_parsed_at_its_beginning_and_at_its_end() {
        let head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(30_000));
        let mut slow = Slow::default();
        let mut found = None;
        for byte in head.bytes() {
            assert!(found.is_none());
            found = slow.receive(byte).unwrap();
        }
        assert_eq!(found.unwrap().length, head.len());
        assert!(slow.parsed <= head.len() + 1, "{} bytes parsed", slow.parsed);
    }

    #[test]
    fn empty_lines_count_towards_the_limit_of_a_head() {
        let mut slow = Slow::default();
        let lines = b"\r\n".repeat(MOST.bytes / 2 + 1);
        let refused = lines.iter().find_map(|byte| slow.receive(*byte).err());
        assert_eq!(refused, Some(Unsound::TooLong));
        let mut scan = HeadScan::default();
        let mut whole = Bytes::from([&lines[..], b"GET / HTTP/1.1\r\n\r\n"].concat());
        assert_eq!(scan.read(&mut whole, MOST).unwrap_err(), Unsound::TooLong);
    }

    #[test]
    fn a_line_feed_alone_before_a_head_is_refused_at_once() {
        for start in ["\n", "\r\n\n"] {
            let mut slow = Slow::default();
            let refused = start.bytes().find_map(|byte| slow.receive(byte).err());
            assert_eq!(refused, Some(Unsound::Head), "{start:?}");
        }
    }
}

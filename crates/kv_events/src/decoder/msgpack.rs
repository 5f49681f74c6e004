//! Reader of MessagePack values in a byte slice. It accepts values whose head (type and length) is longer than
//! necessary, because newer versions of msgspec write such heads. Hostile input costs at most one pass: no
//! function recurses, and a length that exceeds the rest of the input is an error.
//!
//! <https://github.com/msgpack/msgpack/blob/master/spec.md>

/// Why a payload is not a valid batch of KV events. The events before the error were valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The payload ends too early, or a length in it exceeds the payload.
    #[error("the batch of KV events is truncated")]
    Truncated,
    /// A byte or a text is invalid.
    #[error("the batch of KV events is not MessagePack")]
    NotMessagePack,
    /// A value has another type than vLLM writes.
    #[error("a value in the batch of KV events has another type than vLLM writes")]
    WrongType,
}

/// Reads `MessagePack` values from a byte slice. `rest`: the unread bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// A scalar, or the head of an array or map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    Negative(i64),
    Float,
    Text(&'a str),
    Bytes(&'a [u8]),
    /// An array with this number of elements, which follow.
    Array(usize),
    /// A map with this number of pairs, which follow.
    Map(usize),
    Extension,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    /// Reads a scalar, or the head (kind and length) of an array or map.
    pub(super) fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        let head = self.bytes(1)?[0];
        Ok(match head {
            0x00..=0x7f => Value::Unsigned(head.into()),
            0x80..=0x8f => self.map((head & 0x0f).into())?,
            0x90..=0x9f => self.array((head & 0x0f).into())?,
            0xa0..=0xbf => self.text((head & 0x1f).into())?,
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Bool,
            0xc4..=0xc6 => {
                let length = self.number(1 << (head - 0xc4))?;
                Value::Bytes(self.bytes(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.number(1 << (head - 0xc7))?;
                self.bytes(length.checked_add(1).ok_or(DecodeError::Truncated)?)?;
                Value::Extension
            }
            0xca | 0xcb => {
                self.bytes(4 << (head - 0xca))?;
                Value::Float
            }
            0xcc..=0xcf => Value::Unsigned(self.number(1 << (head - 0xcc))?),
            0xd0..=0xd3 => self.signed(1 << (head - 0xd0))?,
            0xd4..=0xd8 => {
                self.bytes(1 + (1 << (head - 0xd4)))?;
                Value::Extension
            }
            0xd9..=0xdb => {
                let length = self.number(1 << (head - 0xd9))?;
                self.text(length)?
            }
            0xdc | 0xdd => {
                let length = self.number(2 << (head - 0xdc))?;
                self.array(length)?
            }
            0xde | 0xdf => {
                let length = self.number(2 << (head - 0xde))?;
                self.map(length)?
            }
            0xe0..=0xff => Value::Negative(i64::from(head.cast_signed())),
            0xc1 => return Err(DecodeError::NotMessagePack),
        })
    }

    /// Reads a signed number of `length` bytes.
    fn signed(&mut self, length: u64) -> Result<Value<'a>, DecodeError> {
        // The shifts extend the sign to 64 bits.
        let unused_bits = 64 - 8 * length;
        let number = self.number(length)? << unused_bits;
        let number = number.cast_signed() >> unused_bits;
        Ok(u64::try_from(number).map_or(Value::Negative(number), Value::Unsigned))
    }

    /// Skips a value and all values in it. Returns its bytes.
    pub(super) fn skip(&mut self) -> Result<&'a [u8], DecodeError> {
        let start = self.rest;
        // Number of values to skip. The head of an array or map announces at most as many values as bytes
        // follow, so the sum cannot overflow.
        let mut pending = 1_usize;
        while pending > 0 {
            pending -= 1;
            match self.value()? {
                Value::Array(count) => pending += count,
                Value::Map(count) => pending += 2 * count,
                _ => {}
            }
            if pending > self.rest.len() {
                return Err(DecodeError::Truncated);
            }
        }
        Ok(&start[..start.len() - self.rest.len()])
    }

    fn text(&mut self, length: u64) -> Result<Value<'a>, DecodeError> {
        let bytes = self.bytes(length)?;
        std::str::from_utf8(bytes)
            .map(Value::Text)
            .map_err(|_| DecodeError::NotMessagePack)
    }

    fn array(&mut self, length: u64) -> Result<Value<'a>, DecodeError> {
        self.count(length, 1).map(Value::Array)
    }

    fn map(&mut self, length: u64) -> Result<Value<'a>, DecodeError> {
        self.count(length, 2).map(Value::Map)
    }

    /// Returns `length`, a number of elements, if the rest of the input can hold so many elements of at least
    /// `size` bytes each. Fails if it cannot.
    fn count(&self, length: u64, size: usize) -> Result<usize, DecodeError> {
        let length = usize::try_from(length).map_err(|_| DecodeError::Truncated)?;
        if length > self.rest.len() / size {
            Err(DecodeError::Truncated)
        } else {
            Ok(length)
        }
    }

    /// Reads a big-endian number of `size` bytes. `size` is at most 8.
    fn number(&mut self, size: u64) -> Result<u64, DecodeError> {
        Ok(self
            .bytes(size)?
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn bytes(&mut self, length: u64) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(length).map_err(|_| DecodeError::Truncated)?;
        let (bytes, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> Result<Value<'_>, DecodeError> {
        Reader::new(bytes).value()
    }

    #[test]
    fn a_number_is_read_in_each_encoding() {
        for bytes in [
            &[7][..],
            &[0xcc, 7],
            &[0xcd, 0, 7],
            &[0xce, 0, 0, 0, 7],
            &[0xcf, 0, 0, 0, 0, 0, 0, 0, 7],
            &[0xd0, 7],
            &[0xd3, 0, 0, 0, 0, 0, 0, 0, 7],
        ] {
            assert_eq!(value(bytes), Ok(Value::Unsigned(7)), "{bytes:x?}");
        }
        assert_eq!(value(&[0xd1, 0xff, 0xfe]), Ok(Value::Negative(-2)));
        assert_eq!(value(&[0xff]), Ok(Value::Negative(-1)));
    }

    #[test]
    fn length_fields_of_each_size_are_read() {
        assert_eq!(value(b"\xa2ab"), Ok(Value::Text("ab")));
        assert_eq!(value(b"\xda\x00\x02ab"), Ok(Value::Text("ab")));
        assert_eq!(value(b"\xc5\x00\x02ab"), Ok(Value::Bytes(b"ab")));
        assert_eq!(value(&[0xdd, 0, 0, 0, 1, 0xc0]), Ok(Value::Array(1)));
        assert_eq!(value(&[0xde, 0, 1, 0xa1, b'a', 0xc0]), Ok(Value::Map(1)));
    }

    #[test]
    fn each_value_is_skipped_with_its_contents() {
        let all = [
            &b"\x97\x92\xcb\x40\x09\x21\xfb\x54\x44\x2d\x18\xca\0\0\0\0"[..], // floats
            b"\x81\xa1a\x91\xc2",
            b"\xd6\xff\0\0\0\0\xc7\x01\x05\x09", // extensions
            b"\xc4\x01\x00\xd9\x01z\xc3",
        ]
        .concat();
        let mut reader = Reader::new(&all);
        assert_eq!(reader.skip().map(<[u8]>::len), Ok(all.len()));
        assert!(reader.rest.is_empty());
    }

    #[test]
    fn a_length_beyond_the_input_is_an_error() {
        for bytes in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdf, 0x80, 0, 0, 0],
            &[0xc6, 0xff, 0xff, 0xff, 0xff],
            &[0xdb, 0, 0, 0, 9, b'a'],
            &[0xc9, 0xff, 0xff, 0xff, 0xff],
            &[0xcf, 0],
            &[],
        ] {
            assert_eq!(value(bytes), Err(DecodeError::Truncated), "{bytes:x?}");
        }
        assert_eq!(value(&[0xc1]), Err(DecodeError::NotMessagePack));
        assert_eq!(value(b"\xa1\xff"), Err(DecodeError::NotMessagePack));
    }

    #[test]
    fn a_million_nested_arrays_are_skipped() {
        let mut nested = vec![0x91; 1_000_000];
        assert_eq!(Reader::new(&nested).skip(), Err(DecodeError::Truncated));
        nested.push(0xc0);
        assert!(Reader::new(&nested).skip().is_ok());
    }
}

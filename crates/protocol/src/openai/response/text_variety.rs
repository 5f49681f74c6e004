//! How varied the text of a stream is: an engine with damaged weights repeats one token, or generates random ones.

/// The first pieces of text of a stream, which are about one token each. Only hashes of the pieces are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextVariety {
    /// A bit for each hash that a piece had.
    seen: u128,
    /// Number of pieces.
    pieces: u8,
    /// Number of pieces whose hash was new.
    distinct: u8,
    /// Bytes of the pieces.
    bytes: u16,
}

/// Number of pieces that are compared.
const MAX_PIECES: u8 = 32;
/// Number of bytes of a piece that are hashed.
const HASHED_BYTES: usize = 16;
/// The constants of the hash FNV-1a of 32 bits.
const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

impl TextVariety {
    /// Number of pieces that are compared.
    pub const PIECES: f64 = MAX_PIECES as f64;

    /// Adds a piece of text.
    #[inline]
    pub(super) fn add(&mut self, text: &[u8]) {
        if self.pieces == MAX_PIECES {
            return;
        }
        let hashed = text.iter().take(HASHED_BYTES);
        let hash = hashed.fold(FNV_OFFSET, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(FNV_PRIME)
        });
        let bit = 1_u128 << ((hash ^ hash >> 16) % u128::BITS);
        self.pieces += 1;
        self.distinct += u8::from(self.seen & bit == 0);
        self.seen |= bit;
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
        self.bytes = self.bytes.saturating_add(length);
    }

    /// Number of different pieces among the first 32. Different pieces can have one hash. `None`: the stream had
    /// fewer pieces.
    pub fn distinct(&self) -> Option<u8> {
        (self.pieces == MAX_PIECES).then_some(self.distinct)
    }

    /// Number of bytes of the first 32 pieces. `None`: the stream had fewer.
    pub fn bytes(&self) -> Option<u16> {
        (self.pieces == MAX_PIECES).then_some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: impl Iterator<Item = String>) -> TextVariety {
        let mut variety = TextVariety::default();
        pieces.for_each(|piece| variety.add(piece.as_bytes()));
        variety
    }

    #[test]
    fn a_repeated_token_has_one_piece() {
        let variety = of((0..90).map(|_| "!".to_owned()));
        assert_eq!((variety.distinct(), variety.bytes()), (Some(1), Some(32)));
        let varied = of((0..90).map(|number| format!(" word{number}")));
        assert!(varied.distinct().is_some_and(|distinct| distinct > 24));
    }

    #[test]
    fn a_short_stream_shows_nothing() {
        assert_eq!(of((0..31).map(|_| "!".to_owned())).distinct(), None);
    }
}

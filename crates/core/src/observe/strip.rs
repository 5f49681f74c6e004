//! Takes out of a stream the one event that its client did not ask for: the usage event that the
//! gateway itself asked for. Every other byte passes, in order. Whole blocks (events, comments)
//! pass at once; only a block that is not whole yet is held back, because it may be that event.

use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// The filter of one stream. The blocks of a frame are told first, then the frame is forwarded.
#[derive(Debug, Default)]
pub(super) struct Strip {
    state: State,
    /// The beginning of a block that is not whole.
    held: BytesMut,
    /// Where the last whole block ends in the frame that is being told; 0 if none does.
    boundary: usize,
    /// The event in that frame. One that starts at 0 starts with what is held.
    event: Option<Range<usize>>,
    /// A frame ended with the CR that ends a block: an LF that comes next belongs to it.
    after_cr: Option<Block>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Passed,
    Taken,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The event may come.
    #[default]
    Watching,
    /// The block that is being read is too long to be it.
    Passing,
    /// It has come, or will not.
    Over,
}

/// The event is shorter, in bytes.
const MAX_HELD: usize = 64 << 10;

impl Strip {
    /// A block ends at `end` of the frame that is being told. Gives whether it is taken out.
    pub(super) fn on_block(&mut self, end: usize, is_usage_event: bool) -> bool {
        let start = std::mem::replace(&mut self.boundary, end);
        match self.state {
            State::Watching if is_usage_event => {
                self.event = Some(start..end);
                self.state = State::Over;
                return true;
            }
            State::Passing => self.state = State::Watching,
            State::Watching | State::Over => {}
        }
        false
    }

    /// Whether the block that is being read would be taken out if it were the event.
    pub(super) fn is_watching(&self) -> bool {
        self.state == State::Watching
    }

    /// The event will not come, or its client would have it anyway.
    pub(super) fn give_up(&mut self) {
        self.state = State::Over;
    }

    /// What may go on when the blocks of a frame have been told. It can be nothing.
    pub(super) fn forward(&mut self, frame: Bytes) -> Bytes {
        if frame.is_empty() {
            return frame;
        }
        let mut whole = std::mem::take(&mut self.boundary);
        let mut event = self.event.take();
        match self.after_cr.take().filter(|_| frame.starts_with(b"\n")) {
            Some(Block::Taken) => return frame.slice(1..),
            Some(Block::Passed) => {
                whole = whole.max(1);
                event = event.map(|event| event.start.max(1)..event.end);
            }
            None => {}
        }
        if whole == frame.len() && frame.ends_with(b"\r") {
            let is_event = event.as_ref().is_some_and(|event| event.end == whole);
            self.after_cr = Some(if is_event { Block::Taken } else { Block::Passed });
        }
        if let Some(event) = event {
            return self.without(&frame, event);
        }
        if self.state == State::Watching && self.held.len() + frame.len() - whole > MAX_HELD {
            self.state = State::Passing;
        }
        let passes = if self.state == State::Watching { whole } else { frame.len() };
        if passes == frame.len() && self.held.is_empty() {
            return frame;
        }
        let out = match (passes, self.held.is_empty()) {
            (0, _) => Bytes::new(),
            (_, true) => frame.slice(..passes),
            (_, false) => {
                let mut out = std::mem::take(&mut self.held);
                out.extend_from_slice(&frame[..passes]);
                out.freeze()
            }
        };
        self.held.extend_from_slice(&frame[passes..]);
        out
    }

    /// What is held when the stream ends.
    pub(super) fn flush(&mut self) -> Bytes {
        std::mem::take(&mut self.held).freeze()
    }

    fn without(&mut self, frame: &Bytes, event: Range<usize>) -> Bytes {
        let mut out = std::mem::take(&mut self.held);
        if event.start == 0 {
            return frame.slice(event.end..);
        }
        out.extend_from_slice(&frame[..event.start]);
        out.extend_from_slice(&frame[event.end..]);
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::{Decoder, Piece};
    use proptest::prelude::*;

    /// Passes `pieces` through, taking the first event with the data `U`.
    fn passed(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut strip, mut decoder, mut data) = (Strip::default(), Decoder::new(), Vec::new());
        let mut passed: Vec<Vec<u8>> = Vec::new();
        for piece in pieces {
            let mut rest = *piece;
            while let Some(part) = decoder.next(&mut rest) {
                match part {
                    Piece::Data(bytes) => data.extend_from_slice(bytes),
                    Piece::Comment => {}
                    Piece::Dispatch | Piece::Blank => {
                        let end = piece.len() - rest.len();
                        let is_crlf = decoder.is_after_cr() && rest.starts_with(b"\n");
                        let is_event = std::mem::take(&mut data) == b"U";
                        strip.on_block(end + usize::from(is_crlf), is_event);
                    }
                }
            }
            passed.push(strip.forward(Bytes::copy_from_slice(piece)).to_vec());
        }
        passed.push(strip.flush().to_vec());
        passed
    }

    #[test]
    fn whole_blocks_pass_at_once_and_a_part_waits_for_the_rest() {
        let pieces: [&[u8]; 3] = [b"data: 1\n\ndata: 2", b"\n", b"\ndata: 3\n\n"];
        let expected: [&[u8]; 4] = [b"data: 1\n\n", b"", b"data: 2\n\ndata: 3\n\n", b""];
        assert_eq!(passed(&pieces), expected);
    }

    #[test]
    fn after_the_event_nothing_is_held() {
        let pieces: [&[u8]; 3] = [b"data: 1\n\nda", b"ta: U\n\n", b"data: [DO"];
        let expected: [&[u8]; 4] = [b"data: 1\n\n", b"", b"data: [DO", b""];
        assert_eq!(passed(&pieces), expected);
    }

    #[test]
    fn what_is_held_at_the_end_is_not_lost() {
        let pieces: [&[u8]; 1] = [b"data: 1\n\ndata: {\"choices\":[],\"us"];
        let expected: [&[u8]; 2] = [b"data: 1\n\n", b"data: {\"choices\":[],\"us"];
        assert_eq!(passed(&pieces), expected);
    }

    #[test]
    fn a_block_too_long_to_be_the_event_passes_in_parts() {
        let long = vec![b'x'; MAX_HELD];
        let pieces: [&[u8]; 5] = [b"data: ", &long, b"y", b"y\n\ndata: U", b"\n\ndata: 2\n\n"];
        let passed = passed(&pieces);
        assert_eq!(passed[1].len(), MAX_HELD + 6);
        assert_eq!((&passed[2][..], &passed[3][..]), (&b"y"[..], &b"y\n\n"[..]));
        assert_eq!((&passed[4][..], &passed[5][..]), (&b"data: 2\n\n"[..], &b""[..]));
    }

    proptest! {
        #[test]
        fn exactly_the_event_is_taken_however_the_bytes_are_cut(
            before in "((data: [a1]{0,3}|: c|event: x)E){0,2}E",
            after in "((data: [b2]{0,3}|: c)E){0,2}(E)?",
            name in "(event: xE|: cE)?",
            ending in prop_oneof![Just("\n"), Just("\r"), Just("\r\n")],
            cuts in proptest::collection::vec(0_usize..80, 0..8),
        ) {
            let before = before.replace('E', ending);
            let event = format!("{name}data: UEE").replace('E', ending);
            let after = after.replace('E', ending);
            let whole = format!("{before}{event}{after}");
            let bytes = whole.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(passed(&pieces).concat(), format!("{before}{after}").into_bytes());
        }
    }
}

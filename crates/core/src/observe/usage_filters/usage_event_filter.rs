//! Removes the usage event from a stream if the gateway requested it and the client did not.
//!
//! The filter forwards all other bytes in order. It forwards a complete block (event or comment) at
//! once. It holds back an incomplete block, because the block can be the usage event.

use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// The filter of one stream. The caller reports the blocks of a frame with [`Self::on_block`], then
/// passes the frame to [`Self::forward`].
#[derive(Debug, Default)]
pub(in crate::observe) struct UsageEventFilter {
    state: FilterState,
    /// The bytes that are held back: the beginning of a block that is not complete.
    held: BytesMut,
    /// Offset in the current frame at which its last complete block ends. 0: no block ends in it.
    complete_until: usize,
    /// Byte range of the usage event in the current frame. An event whose range starts at 0 also
    /// includes the bytes held back from earlier frames.
    event_range: Option<Range<usize>>,
    /// The action on the block whose final CR ended the last frame. An LF at the start of the next
    /// frame belongs to that block. `None`: the last frame did not end with such a CR.
    after_cr: Option<BlockAction>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockAction {
    Forwarded,
    Removed,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum FilterState {
    /// The usage event can still arrive.
    #[default]
    Searching,
    /// The current block is too long to be the usage event. Its bytes are forwarded as they arrive.
    PassingLongBlock,
    /// The usage event was removed, or the search was stopped. All bytes are forwarded.
    Done,
}

/// Longest block that is held back, in bytes. Usage events are shorter.
const MAX_HELD_BYTES: usize = 64 << 10;

impl UsageEventFilter {
    /// Records that a block ends at offset `end` of the current frame. Returns whether the filter
    /// removes the block.
    pub(in crate::observe) fn on_block(&mut self, end: usize, is_usage_event: bool) -> bool {
        let start = std::mem::replace(&mut self.complete_until, end);
        match self.state {
            FilterState::Searching if is_usage_event => {
                self.event_range = Some(start..end);
                self.state = FilterState::Done;
                return true;
            }
            FilterState::PassingLongBlock => self.state = FilterState::Searching,
            FilterState::Searching | FilterState::Done => {}
        }
        false
    }

    /// Whether the current block would be removed if it were the usage event.
    pub(in crate::observe) fn is_searching(&self) -> bool {
        self.state == FilterState::Searching
    }

    /// Stops the search for the usage event, because the client receives usage anyway.
    pub(in crate::observe) fn stop_searching(&mut self) {
        self.state = FilterState::Done;
    }

    /// The bytes to forward, after all blocks of `frame` have been reported. They can be empty.
    pub(in crate::observe) fn forward(&mut self, frame: Bytes) -> Bytes {
        if frame.is_empty() {
            return frame;
        }
        let mut complete = std::mem::take(&mut self.complete_until);
        let mut event = self.event_range.take();
        match self.after_cr.take().filter(|_| frame.starts_with(b"\n")) {
            Some(BlockAction::Removed) => return frame.slice(1..),
            Some(BlockAction::Forwarded) => {
                complete = complete.max(1);
                event = event.map(|event| event.start.max(1)..event.end);
            }
            None => {}
        }
        if complete == frame.len() && frame.ends_with(b"\r") {
            let is_event = event.as_ref().is_some_and(|event| event.end == complete);
            let action = if is_event { BlockAction::Removed } else { BlockAction::Forwarded };
            self.after_cr = Some(action);
        }
        if let Some(event) = event {
            return self.remove_range(&frame, event);
        }
        let incomplete = self.held.len() + frame.len() - complete;
        if self.state == FilterState::Searching && incomplete > MAX_HELD_BYTES {
            self.state = FilterState::PassingLongBlock;
        }
        let forwarded_len =
            if self.state == FilterState::Searching { complete } else { frame.len() };
        if forwarded_len == frame.len() && self.held.is_empty() {
            return frame;
        }
        let out = match (forwarded_len, self.held.is_empty()) {
            (0, _) => Bytes::new(),
            (_, true) => frame.slice(..forwarded_len),
            (_, false) => {
                let mut out = std::mem::take(&mut self.held);
                out.extend_from_slice(&frame[..forwarded_len]);
                out.freeze()
            }
        };
        self.held.extend_from_slice(&frame[forwarded_len..]);
        out
    }

    /// Returns the bytes that are held back. Called when the stream has ended.
    pub(in crate::observe) fn flush(&mut self) -> Bytes {
        std::mem::take(&mut self.held).freeze()
    }

    /// Forwards the held bytes and `frame` without the range of the usage event.
    fn remove_range(&mut self, frame: &Bytes, event: Range<usize>) -> Bytes {
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
    use crate::sse::{SseDecoder, SsePiece};
    use proptest::prelude::*;

    /// The output of the filter for each piece of a stream, and for its end. An event with the data
    /// `U` is the usage event.
    fn filter_chunks(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut filter, mut decoder, mut data) =
            (UsageEventFilter::default(), SseDecoder::new(), Vec::new());
        let mut filtered: Vec<Vec<u8>> = Vec::new();
        for piece in pieces {
            let mut rest = *piece;
            while let Some(part) = decoder.next(&mut rest) {
                match part {
                    SsePiece::Data(bytes) => data.extend_from_slice(bytes),
                    SsePiece::Comment => {}
                    SsePiece::Dispatch | SsePiece::Blank => {
                        let end = piece.len() - rest.len();
                        let is_crlf = decoder.is_after_cr() && rest.starts_with(b"\n");
                        let is_event = std::mem::take(&mut data) == b"U";
                        filter.on_block(end + usize::from(is_crlf), is_event);
                    }
                }
            }
            filtered.push(filter.forward(Bytes::copy_from_slice(piece)).to_vec());
        }
        filtered.push(filter.flush().to_vec());
        filtered
    }

    #[test]
    fn whole_blocks_pass_at_once_and_a_part_waits_for_the_rest() {
        let pieces: [&[u8]; 3] = [b"data: 1\n\ndata: 2", b"\n", b"\ndata: 3\n\n"];
        let expected: [&[u8]; 4] = [b"data: 1\n\n", b"", b"data: 2\n\ndata: 3\n\n", b""];
        assert_eq!(filter_chunks(&pieces), expected);
    }

    #[test]
    fn nothing_is_held_after_the_usage_event() {
        let pieces: [&[u8]; 3] = [b"data: 1\n\nda", b"ta: U\n\n", b"data: [DO"];
        let expected: [&[u8]; 4] = [b"data: 1\n\n", b"", b"data: [DO", b""];
        assert_eq!(filter_chunks(&pieces), expected);
    }

    #[test]
    fn held_bytes_are_flushed_at_the_end() {
        let pieces: [&[u8]; 1] = [b"data: 1\n\ndata: {\"choices\":[],\"us"];
        let expected: [&[u8]; 2] = [b"data: 1\n\n", b"data: {\"choices\":[],\"us"];
        assert_eq!(filter_chunks(&pieces), expected);
    }

    #[test]
    fn a_block_too_long_to_be_the_event_passes_in_parts() {
        let long = vec![b'x'; MAX_HELD_BYTES];
        let pieces: [&[u8]; 5] = [b"data: ", &long, b"y", b"y\n\ndata: U", b"\n\ndata: 2\n\n"];
        let filtered = filter_chunks(&pieces);
        assert_eq!(filtered[1].len(), MAX_HELD_BYTES + 6);
        assert_eq!((&filtered[2][..], &filtered[3][..]), (&b"y"[..], &b"y\n\n"[..]));
        assert_eq!((&filtered[4][..], &filtered[5][..]), (&b"data: 2\n\n"[..], &b""[..]));
    }

    proptest! {
        #[test]
        fn exactly_the_usage_event_is_removed_however_the_bytes_are_split(
            before in "((data: [a1]{0,3}|: c|event: x)E){0,2}E",
            after in "((data: [b2]{0,3}|: c)E){0,2}(E)?",
            name in "(event: xE|: cE)?",
            ending in prop_oneof![Just("\n"), Just("\r"), Just("\r\n")],
            cuts in proptest::collection::vec(0_usize..80, 0..8),
        ) {
            let before = before.replace('E', ending);
            let event = format!("{name}data: UEE").replace('E', ending);
            let after = after.replace('E', ending);
            let stream = format!("{before}{event}{after}");
            let bytes = stream.as_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let filtered = filter_chunks(&pieces).concat();
            prop_assert_eq!(filtered, format!("{before}{after}").into_bytes());
        }
    }
}

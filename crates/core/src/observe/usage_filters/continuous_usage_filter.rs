//! Removes from a stream all usage that the gateway requested with `continuous_usage_stats` and the
//! client did not: the `usage` member of every event, and the usage event at the end. All other
//! bytes pass, in order.
//!
//! vLLM writes the member as `,"usage":{…}` after `choices` into the JSON of a single `data` line;
//! without the option the member is absent. An event in which the member cannot be found this way
//! passes unchanged.

use super::usage_member;
use bytes::{Bytes, BytesMut};

/// The filter of one stream. Report the blocks of a frame first, then forward the frame.
#[derive(Debug, Default)]
pub(in crate::observe) struct ContinuousUsageFilter {
    /// The beginning of a block that is not complete.
    held: BytesMut,
    /// The blocks that end in the current frame: the offset of their end, and their edit.
    blocks: Vec<(usize, BlockEdit)>,
    /// Memory of the frames that are returned, used again when they have been written.
    out: BytesMut,
    /// Edit of the block whose final CR ended the last frame: an LF that comes next belongs to it.
    after_cr: Option<BlockEdit>,
    /// The current block is longer than [`MAX_HELD_BYTES`]: its parts pass as they come.
    is_long: bool,
    /// The usage event has come. Nothing more is removed.
    is_over: bool,
    /// The usage of an event could not be removed.
    has_failed: bool,
}

/// The action of the filter on a block: an event or a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::observe) enum BlockEdit {
    /// Forwards it.
    Pass,
    /// Removes its `usage` member.
    Member,
    /// Removes all of it: it is the usage event.
    Event,
}

/// Longest block that is held back, in bytes. Events with token ids or logprobs can be longer; the
/// gateway does not request continuous usage for requests that ask for those.
pub(super) const MAX_HELD_BYTES: usize = 64 << 10;

impl BlockEdit {
    /// The edit of an event that is the usage event, or has usage beside output.
    pub(in crate::observe) fn for_event(is_usage_event: bool, has_usage: bool) -> Self {
        match (is_usage_event, has_usage) {
            (true, _) => Self::Event,
            (false, true) => Self::Member,
            (false, false) => Self::Pass,
        }
    }
}

impl ContinuousUsageFilter {
    /// Records that a block ends at offset `end` of the current frame. Returns whether it is
    /// removed as the usage event.
    pub(in crate::observe) fn on_block(&mut self, end: usize, edit: BlockEdit) -> bool {
        let is_long = std::mem::take(&mut self.is_long);
        self.has_failed |= is_long && edit != BlockEdit::Pass;
        let edit = if is_long || self.is_over { BlockEdit::Pass } else { edit };
        self.is_over |= edit == BlockEdit::Event;
        self.blocks.push((end, edit));
        edit == BlockEdit::Event
    }

    /// Whether the client received usage that it did not request.
    pub(in crate::observe) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The bytes to forward once all blocks of `frame` have been reported. They can be empty.
    pub(in crate::observe) fn forward(&mut self, frame: Bytes) -> Bytes {
        if frame.is_empty() {
            return frame;
        }
        let edit_before_cr = self.after_cr.take().filter(|_| frame.starts_with(b"\n"));
        let blocks = std::mem::take(&mut self.blocks);
        let last = blocks.last().copied();
        let complete = last.map_or(usize::from(edit_before_cr.is_some()), |(end, _)| end);
        if complete == frame.len() && frame.ends_with(b"\r") {
            self.after_cr = last.map(|(_, edit)| edit);
        }
        let is_passing = self.is_passing(frame.len() - complete);
        let is_untouched = self.held.is_empty()
            && edit_before_cr != Some(BlockEdit::Event)
            && blocks.iter().all(|(_, edit)| *edit == BlockEdit::Pass)
            && (is_passing || complete == frame.len());
        let out = if is_untouched {
            frame
        } else {
            self.apply_edits(&frame, edit_before_cr, &blocks, is_passing)
        };
        self.blocks = blocks;
        self.blocks.clear();
        out
    }

    /// The bytes that are held back when the stream ends.
    pub(in crate::observe) fn flush(&mut self) -> Bytes {
        std::mem::take(&mut self.held).freeze()
    }

    /// Whether an incomplete block passes, with `more` bytes after the complete blocks.
    fn is_passing(&mut self, more: usize) -> bool {
        self.is_long |= !self.is_over && self.held.len() + more > MAX_HELD_BYTES;
        self.is_long || self.is_over
    }

    fn apply_edits(
        &mut self,
        frame: &[u8],
        edit_before_cr: Option<BlockEdit>,
        blocks: &[(usize, BlockEdit)],
        is_passing: bool,
    ) -> Bytes {
        self.out.reserve(self.held.len() + frame.len());
        let mut from = 0;
        if let Some(edit) = edit_before_cr {
            from = 1;
            self.write_block(
                &frame[..1],
                if edit == BlockEdit::Event { edit } else { BlockEdit::Pass },
            );
        }
        for (end, edit) in blocks {
            let end = (*end).max(from);
            if self.held.is_empty() {
                self.write_block(&frame[from..end], *edit);
            } else {
                let mut block = std::mem::take(&mut self.held);
                block.extend_from_slice(&frame[from..end]);
                self.write_block(&block, *edit);
                block.clear();
                self.held = block;
            }
            from = end;
        }
        if is_passing {
            self.out.extend_from_slice(&self.held);
            self.held.clear();
            self.out.extend_from_slice(&frame[from..]);
        } else {
            self.held.extend_from_slice(&frame[from..]);
        }
        self.out.split().freeze()
    }

    fn write_block(&mut self, block: &[u8], edit: BlockEdit) {
        let removed = match edit {
            BlockEdit::Pass => None,
            BlockEdit::Event => return,
            BlockEdit::Member => {
                let member = usage_member::find(block);
                self.has_failed |= member.is_none();
                member
            }
        };
        let removed = removed.unwrap_or(0..0);
        self.out.extend_from_slice(&block[..removed.start]);
        self.out.extend_from_slice(&block[removed.end..]);
    }
}

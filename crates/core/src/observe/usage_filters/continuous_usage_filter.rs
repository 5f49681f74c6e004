//! Removes from a stream all usage that the gateway requested with `continuous_usage_stats` and the
//! client did not: the `usage` member of every event, and the usage event at the end. The filter
//! forwards all other bytes in order.
//!
//! vLLM writes the member as `,"usage":{…}` after `choices` into the JSON of a single `data` line;
//! without the option the member is absent. The filter forwards an event unchanged if it cannot
//! find the member in this way.

use super::usage_member;
use bytes::{Bytes, BytesMut};

/// The filter of one stream. The caller reports the blocks of a frame with [`Self::on_block`], then
/// passes the frame to [`Self::forward`].
#[derive(Debug, Default)]
pub(in crate::observe) struct ContinuousUsageFilter {
    /// The bytes that are held back: the beginning of a block that is not complete.
    held: BytesMut,
    /// The blocks that end in the current frame: the offset of the end of each block, and its edit.
    blocks: Vec<(usize, BlockEdit)>,
    /// Buffer of the returned frames. Its memory is reused after these frames have been written.
    out: BytesMut,
    /// Edit of the block whose final CR ended the last frame. An LF at the start of the next frame
    /// belongs to that block. `None`: the last frame did not end with such a CR.
    after_cr: Option<BlockEdit>,
    /// The current block is longer than [`MAX_HELD_BYTES`]. Its bytes are forwarded as they arrive.
    is_long: bool,
    /// The usage event was removed. Nothing more is removed.
    has_removed_usage_event: bool,
    /// The usage of an event could not be removed.
    has_failed: bool,
}

/// The action of the filter on a block: an event or a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::observe) enum BlockEdit {
    /// Forwards the block unchanged.
    Pass,
    /// Removes the `usage` member of the event.
    Member,
    /// Removes the whole block, which is the usage event.
    Event,
}

/// Longest block that is held back, in bytes. Events with token ids or logprobs can be longer; the
/// gateway does not request continuous usage for requests that ask for those.
pub(super) const MAX_HELD_BYTES: usize = 64 << 10;

impl BlockEdit {
    /// The edit of an event. `has_usage`: the event has usage.
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
        let edit = if is_long || self.has_removed_usage_event { BlockEdit::Pass } else { edit };
        self.has_removed_usage_event |= edit == BlockEdit::Event;
        self.blocks.push((end, edit));
        edit == BlockEdit::Event
    }

    /// Whether the client received usage that it did not request.
    pub(in crate::observe) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The bytes to forward, after all blocks of `frame` have been reported. They can be empty.
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

    /// Returns the bytes that are held back. Called when the stream has ended.
    pub(in crate::observe) fn flush(&mut self) -> Bytes {
        std::mem::take(&mut self.held).freeze()
    }

    /// Whether the incomplete block at the end of a frame is forwarded instead of held back.
    /// `added` is the number of its bytes in this frame.
    fn is_passing(&mut self, added: usize) -> bool {
        self.is_long |= !self.has_removed_usage_event && self.held.len() + added > MAX_HELD_BYTES;
        self.is_long || self.has_removed_usage_event
    }

    /// Returns the held bytes and `frame` with the edits applied, except for bytes that are held
    /// back.
    fn apply_edits(
        &mut self,
        frame: &[u8],
        edit_before_cr: Option<BlockEdit>,
        blocks: &[(usize, BlockEdit)],
        is_passing: bool,
    ) -> Bytes {
        self.out.reserve(self.held.len() + frame.len());
        let mut start = 0;
        if let Some(edit) = edit_before_cr {
            start = 1;
            self.write_block(
                &frame[..1],
                if edit == BlockEdit::Event { edit } else { BlockEdit::Pass },
            );
        }
        for (end, edit) in blocks {
            let end = (*end).max(start);
            if self.held.is_empty() {
                self.write_block(&frame[start..end], *edit);
            } else {
                let mut block = std::mem::take(&mut self.held);
                block.extend_from_slice(&frame[start..end]);
                self.write_block(&block, *edit);
                block.clear();
                self.held = block;
            }
            start = end;
        }
        if is_passing {
            self.out.extend_from_slice(&self.held);
            self.held.clear();
            self.out.extend_from_slice(&frame[start..]);
        } else {
            self.held.extend_from_slice(&frame[start..]);
        }
        self.out.split().freeze()
    }

    /// Appends a complete block to `out` with the edit applied.
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

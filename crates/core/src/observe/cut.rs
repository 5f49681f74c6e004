//! Removes from a stream all usage that the gateway asked for with `continuous_usage_stats` and
//! its client did not: the `usage` member of every event, and the usage event at the end. Every
//! other byte passes, in order.
//!
//! vLLM writes the member as `,"usage":{…}` behind `choices` into the JSON of a single `data` line;
//! without the option the member is absent. An event in which the member cannot be found this way
//! passes as it came.

use super::member;
use bytes::{Bytes, BytesMut};

/// The filter of one stream. The caller reports the blocks of a frame, then forwards the frame.
#[derive(Debug, Default)]
pub(super) struct Cut {
    /// The beginning of a block that is not complete.
    held: BytesMut,
    /// The blocks that end in the frame that is being read: where, and what is done to each.
    blocks: Vec<(usize, Edit)>,
    /// Memory of the frames that are given out, used again when they have been written.
    out: BytesMut,
    /// The last frame ended with the CR that ends a block: an LF that comes next belongs to it.
    after_cr: Option<Edit>,
    /// The block that is being read is longer than [`MAX_HELD`]: its parts pass as they come.
    is_long: bool,
    /// The usage event has come. Nothing more is removed.
    is_over: bool,
    /// The usage of an event could not be removed.
    has_failed: bool,
}

/// What is done to a block: an event or a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    /// It passes.
    Pass,
    /// Its `usage` member is removed.
    Member,
    /// It is the usage event: all of it is removed.
    Event,
}

/// Longest block that is held back, in bytes. Requests whose events are longer, because they ask for
/// token ids or logprobs, are not in the sample.
const MAX_HELD: usize = 64 << 10;

impl Edit {
    /// What is done to an event that is the usage event, or has usage among other things.
    pub(super) fn of(is_usage_event: bool, has_usage: bool) -> Self {
        match (is_usage_event, has_usage) {
            (true, _) => Self::Event,
            (false, true) => Self::Member,
            (false, false) => Self::Pass,
        }
    }
}

impl Cut {
    /// A block ends at `end` of the frame that is being read. Returns whether the usage event is
    /// removed with it.
    pub(super) fn on_block(&mut self, end: usize, edit: Edit) -> bool {
        let is_long = std::mem::take(&mut self.is_long);
        self.has_failed |= is_long && edit != Edit::Pass;
        let edit = if is_long || self.is_over { Edit::Pass } else { edit };
        self.is_over |= edit == Edit::Event;
        self.blocks.push((end, edit));
        edit == Edit::Event
    }

    /// Whether the client saw usage that it did not ask for.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The bytes to forward when the blocks of a frame have been reported. There can be none.
    pub(super) fn forward(&mut self, frame: Bytes) -> Bytes {
        if frame.is_empty() {
            return frame;
        }
        let before = self.after_cr.take().filter(|_| frame.starts_with(b"\n"));
        let blocks = std::mem::take(&mut self.blocks);
        let last = blocks.last().copied();
        let whole = last.map_or(usize::from(before.is_some()), |(end, _)| end);
        if whole == frame.len() && frame.ends_with(b"\r") {
            self.after_cr = last.map(|(_, edit)| edit);
        }
        let is_passing = self.is_passing(frame.len() - whole);
        let is_untouched = self.held.is_empty()
            && before != Some(Edit::Event)
            && blocks.iter().all(|(_, edit)| *edit == Edit::Pass)
            && (is_passing || whole == frame.len());
        let out =
            if is_untouched { frame } else { self.edited(&frame, before, &blocks, is_passing) };
        self.blocks = blocks;
        self.blocks.clear();
        out
    }

    /// The bytes that are held when the stream ends.
    pub(super) fn flush(&mut self) -> Bytes {
        std::mem::take(&mut self.held).freeze()
    }

    /// Whether an incomplete block passes, with `more` bytes behind the complete ones.
    fn is_passing(&mut self, more: usize) -> bool {
        self.is_long |= !self.is_over && self.held.len() + more > MAX_HELD;
        self.is_long || self.is_over
    }

    fn edited(
        &mut self,
        frame: &[u8],
        before: Option<Edit>,
        blocks: &[(usize, Edit)],
        is_passing: bool,
    ) -> Bytes {
        self.out.reserve(self.held.len() + frame.len());
        let mut from = 0;
        if let Some(edit) = before {
            from = 1;
            self.put(&frame[..1], if edit == Edit::Event { edit } else { Edit::Pass });
        }
        for (end, edit) in blocks {
            let end = (*end).max(from);
            if self.held.is_empty() {
                self.put(&frame[from..end], *edit);
            } else {
                let mut block = std::mem::take(&mut self.held);
                block.extend_from_slice(&frame[from..end]);
                self.put(&block, *edit);
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

    fn put(&mut self, block: &[u8], edit: Edit) {
        let removed = match edit {
            Edit::Pass => None,
            Edit::Event => return,
            Edit::Member => {
                let member = member::find(block);
                self.has_failed |= member.is_none();
                member
            }
        };
        let removed = removed.unwrap_or(0..0);
        self.out.extend_from_slice(&block[..removed.start]);
        self.out.extend_from_slice(&block[removed.end..]);
    }
}

#[cfg(test)]
#[path = "cut_tests.rs"]
mod tests;

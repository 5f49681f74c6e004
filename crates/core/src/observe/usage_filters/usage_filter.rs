//! Restores the stream that the client would have received if the gateway had not requested usage.
//!
//! The filter removes the `usage` member of every event if the gateway requested continuous usage,
//! and the usage event if the client did not request it. vLLM's Python front end writes
//! `system_fingerprint` into the usage event if there is one, else into the events with a finish
//! reason. So the filter inserts that member where the usage event is removed. The filter forwards
//! all other bytes in order.
//!
//! vLLM writes the members after `choices` into the JSON of a single `data` line. The filter
//! forwards an event unchanged if the event has another layout.

use super::usage_member;
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// The filter of one stream. The caller reports the blocks of a frame with [`Self::on_block`], then
/// passes the frame to [`Self::forward`].
#[derive(Debug)]
pub(in crate::observe) struct UsageFilter {
    /// Whether the usage event is removed. `false`: the client requested it.
    removes_event: bool,
    /// The beginning of a block that is not complete.
    held: BytesMut,
    /// An event with a finish reason that waits for the next event, which can contain the unknown
    /// fingerprint. Empty: no event waits.
    waiting: BytesMut,
    /// Offset in `waiting` at which the fingerprint belongs.
    waiting_fingerprint_at: usize,
    /// The events to edit that end in the current frame, with their byte ranges. A range that
    /// starts at 0 also includes the held bytes.
    edits: Vec<(Range<usize>, EventEdit)>,
    /// Offset in the current frame at which its last complete block ends. 0: no block ends in it.
    complete_until: usize,
    /// Buffer of the returned frames. Its memory is reused after these frames have been written.
    out: BytesMut,
    /// Whether the block whose final CR ended the last frame was removed. An LF at the start of the
    /// next frame belongs to that block. `None`: the last frame did not end with such a CR.
    removed_before_lf: Option<bool>,
    /// The current block is longer than [`MAX_HELD_BYTES`]. Its bytes are forwarded as they arrive.
    is_long: bool,
    /// The usage event has passed or was removed, or the client receives usage anyway. All bytes
    /// are forwarded.
    is_done: bool,
    /// The usage of an event could not be removed.
    has_failed: bool,
    /// The `system_fingerprint` member of the server, including its leading comma. Empty: the
    /// server sends none. `None`: not known.
    fingerprint: Option<Bytes>,
}

/// The change to an event.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EventEdit {
    /// Removes the whole event, which is the usage event.
    Remove,
    /// Changes members of the event.
    Members {
        /// The `usage` member is removed.
        has_usage: bool,
        /// Byte range of the `usage` member in the frame. `None`: it must be searched.
        usage_at: Option<Range<usize>>,
        /// The fingerprint is inserted.
        needs_fingerprint: bool,
    },
}

/// The parts of an event that matter to the filter. The default is a block that the filter does not
/// change, such as a comment.
#[derive(Debug, Clone, Default)]
pub(in crate::observe) struct EventParts {
    /// The event is the usage event.
    pub(in crate::observe) is_usage_event: bool,
    /// The event has usage that the client did not request.
    pub(in crate::observe) has_usage: bool,
    /// Byte range of the `usage` member in the current frame. `None`: it is not known.
    pub(in crate::observe) usage_at: Option<Range<usize>>,
    /// The event has a finish reason.
    pub(in crate::observe) has_finish: bool,
}

/// Longest block that is held back, in bytes. Events with token ids or logprobs can be longer; the
/// gateway does not request continuous usage for requests that ask for those.
pub(super) const MAX_HELD_BYTES: usize = 64 << 10;

impl UsageFilter {
    /// The filter of a stream. `removes_event`: the usage event is removed. `fingerprint`: the
    /// `system_fingerprint` member of an earlier stream of the same server.
    pub(in crate::observe) fn new(removes_event: bool, fingerprint: Option<Bytes>) -> Self {
        Self {
            removes_event,
            held: BytesMut::new(),
            waiting: BytesMut::new(),
            waiting_fingerprint_at: 0,
            edits: Vec::new(),
            complete_until: 0,
            out: BytesMut::new(),
            removed_before_lf: None,
            is_long: false,
            is_done: false,
            has_failed: false,
            fingerprint,
        }
    }

    /// Records that a block ends at offset `end` of the current frame. Returns whether it is
    /// removed as the usage event.
    pub(in crate::observe) fn on_block(&mut self, end: usize, event: EventParts) -> bool {
        let start = std::mem::replace(&mut self.complete_until, end);
        let is_long = std::mem::take(&mut self.is_long);
        if self.is_done {
            return false;
        }
        let EventParts { is_usage_event, has_usage, usage_at, has_finish } = event;
        if is_long {
            self.has_failed |= has_usage;
            return false;
        }
        self.is_done = is_usage_event;
        let has_fingerprint = || self.fingerprint.as_ref().is_none_or(|member| !member.is_empty());
        let needs_fingerprint = has_finish && self.removes_event && has_fingerprint();
        let edit = match is_usage_event {
            true if self.removes_event => EventEdit::Remove,
            false if has_usage || needs_fingerprint => {
                EventEdit::Members { has_usage, usage_at, needs_fingerprint }
            }
            _ => return false,
        };
        self.edits.push((start..end, edit));
        is_usage_event
    }

    /// Whether the current block would be removed if it were the usage event.
    pub(in crate::observe) fn is_searching(&self) -> bool {
        !self.is_done && !self.is_long
    }

    /// Stops all changes, because the client receives usage anyway.
    pub(in crate::observe) fn stop(&mut self) {
        self.is_done = true;
    }

    /// Whether the client received usage that it did not request.
    pub(in crate::observe) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// The `system_fingerprint` member of the server. Empty: it sends none. `None`: not known.
    pub(in crate::observe) fn fingerprint(&self) -> Option<&Bytes> {
        self.fingerprint.as_ref()
    }

    /// The bytes to forward, after all blocks of `frame` have been reported. They can be empty.
    pub(in crate::observe) fn forward(&mut self, frame: Bytes) -> Bytes {
        if frame.is_empty() {
            return frame;
        }
        let removed_before_lf = self.removed_before_lf.take().filter(|_| frame.starts_with(b"\n"));
        let begun = usize::from(removed_before_lf.is_some());
        let complete = std::mem::take(&mut self.complete_until).max(begun);
        if complete == frame.len() && frame.ends_with(b"\r") {
            let is_removed = |(range, edit): &(Range<usize>, EventEdit)| {
                range.end == complete && *edit == EventEdit::Remove
            };
            self.removed_before_lf = Some(self.edits.last().is_some_and(is_removed));
        }
        let is_removed_lf = removed_before_lf == Some(true);
        let is_unchanged = self.edits.is_empty() && self.waiting.is_empty() && !is_removed_lf;
        if is_unchanged && self.held.is_empty() {
            if self.is_passing(frame.len() - complete) {
                return frame;
            }
            self.held.extend_from_slice(&frame[complete..]);
            return frame.slice(..complete);
        }
        self.out.reserve(self.held.len() + self.waiting.len() + frame.len());
        match removed_before_lf {
            Some(false) if !self.waiting.is_empty() => self.waiting.extend_from_slice(b"\n"),
            Some(false) => self.out.extend_from_slice(b"\n"),
            Some(true) | None => {}
        }
        self.write_blocks(&frame, begun, complete);
        let rest = &frame[complete..];
        if self.is_passing(self.held.len() + rest.len()) {
            let held = std::mem::take(&mut self.held);
            self.write(&held);
            self.write(rest);
        } else {
            self.held.extend_from_slice(rest);
        }
        self.out.split().freeze()
    }

    /// Returns the bytes that are held back. Called when the stream has ended.
    pub(in crate::observe) fn flush(&mut self) -> Bytes {
        let mut held = std::mem::take(&mut self.waiting);
        held.extend_from_slice(&std::mem::take(&mut self.held));
        held.freeze()
    }

    /// Whether an incomplete block of this length is forwarded instead of held back.
    fn is_passing(&mut self, length: usize) -> bool {
        self.is_long |= !self.is_done && length > MAX_HELD_BYTES;
        self.is_long || self.is_done
    }

    /// Writes the held bytes and the complete blocks of a frame, which are in the range from
    /// `start` to `complete`, with the edits applied.
    fn write_blocks(&mut self, frame: &[u8], mut start: usize, complete: usize) {
        if start >= complete {
            return;
        }
        let (mut held, mut edits) =
            (std::mem::take(&mut self.held), std::mem::take(&mut self.edits));
        for (range, edit) in edits.drain(..) {
            if range.start == 0 && !held.is_empty() {
                held.extend_from_slice(&frame[start..range.end]);
                self.write_event(&held, edit, None);
            } else {
                self.write(&held);
                let event_start = range.start.max(start);
                self.write(&frame[start..event_start]);
                self.write_event(&frame[event_start..range.end], edit, Some(event_start));
            }
            held.clear();
            start = range.end;
        }
        self.write(&held);
        self.write(&frame[start..complete]);
        held.clear();
        (self.held, self.edits) = (held, edits);
    }

    /// Writes bytes that follow the bytes written before.
    fn write(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            if !self.waiting.is_empty() {
                self.write_waiting(&[]);
            }
            self.out.extend_from_slice(bytes);
        }
    }

    /// Writes the event that waits for the fingerprint.
    fn write_waiting(&mut self, fingerprint: &[u8]) {
        let (before, after) = self.waiting.split_at(self.waiting_fingerprint_at);
        for part in [before, fingerprint, after] {
            self.out.extend_from_slice(part);
        }
        self.waiting.clear();
        self.waiting_fingerprint_at = 0;
    }

    /// Takes the fingerprint from the usage event, which is not written. Writes the event that
    /// waits for the fingerprint.
    fn take_fingerprint(&mut self, usage_event: &[u8]) {
        let fingerprint = usage_member::find_fingerprint(usage_event);
        if !self.waiting.is_empty() {
            self.write_waiting(fingerprint);
        }
        if self.fingerprint.as_deref() != Some(fingerprint) {
            self.fingerprint = Some(Bytes::copy_from_slice(fingerprint));
        }
    }

    /// Writes a complete event with the edit applied. `at`: its offset in the frame, if it is
    /// completely in the frame.
    fn write_event(&mut self, event: &[u8], edit: EventEdit, at: Option<usize>) {
        let (has_usage, usage_at, needs_fingerprint) = match edit {
            EventEdit::Remove => return self.take_fingerprint(event),
            EventEdit::Members { has_usage, usage_at, needs_fingerprint } => {
                (has_usage, usage_at, needs_fingerprint)
            }
        };
        let known = usage_at.zip(at).and_then(|(usage, at)| {
            let member = usage.start.checked_sub(at)?..usage.end.checked_sub(at)?;
            usage_member::is_at(event, &member).then_some(member)
        });
        let member = if has_usage { known.or_else(|| usage_member::find(event)) } else { None };
        self.has_failed |= has_usage && member.is_none();
        let end_of_choices = if needs_fingerprint && !has_usage {
            usage_member::end_of_choices(event)
        } else {
            None
        };
        let Some(removed) = member.or(end_of_choices.map(|end| end..end)) else {
            return self.write(event);
        };
        let (before, after) = (&event[..removed.start], &event[removed.end..]);
        self.write(before);
        match self.fingerprint.clone() {
            Some(fingerprint) if needs_fingerprint => self.out.extend_from_slice(&fingerprint),
            None if needs_fingerprint => {
                // The part of the event that was just written waits, too.
                let begin = self.out.len() - before.len();
                self.waiting = self.out.split_off(begin);
                self.waiting_fingerprint_at = before.len();
                self.waiting.extend_from_slice(after);
                return;
            }
            _ => {}
        }
        self.out.extend_from_slice(after);
    }
}

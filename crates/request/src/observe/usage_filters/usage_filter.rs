//! Restores the stream that the client would have received if the gateway had not requested usage.
//!
//! The filter removes the `usage` object of every event if the gateway requested continuous usage
//! (`continuous_usage_stats`). It removes the usage event (the last event, with `usage` and without choices) if
//! the client did not request it. vLLM's Python front end writes `system_fingerprint` into the usage event or,
//! if there is none, into the events with a finish reason. So if the filter removes the usage event, it inserts
//! that member into the events with a finish reason. The filter forwards all other bytes in order.
//!
//! The members of an event can have any order. Two kinds of events pass unchanged: events that cannot be
//! edited, and usage events with content that the client would not get otherwise.

use super::event_members::EventMembers;
use super::usage_splitter;
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// Removes the usage from one stream. The caller reports the blocks (lines up to a blank line) of a frame with
/// [`Self::on_block`], and then passes the frame to [`Self::forward`].
#[derive(Debug, Default)]
pub(super) struct UsageFilter {
    /// Whether the usage event is removed. `false`: the client requested it.
    removes_event: bool,
    /// The bytes of a block (lines up to a blank line) whose end has not arrived.
    held: BytesMut,
    /// An event with a finish reason, and the comments after it. The event waits for the next event, which can
    /// contain the unknown fingerprint. Empty: no event waits.
    waiting: BytesMut,
    /// Offset in `waiting` at which the fingerprint belongs.
    waiting_fingerprint_at: usize,
    /// Whether an event with a finish reason was reported and no later event yet.
    is_after_finish: bool,
    /// Whether an event with a finish reason was written without the fingerprint.
    lacks_fingerprint: bool,
    /// The last `system_fingerprint` that was written into an event with a finish reason. Empty: none.
    written_fingerprint: Bytes,
    /// The events to edit that end in the current frame, with their byte ranges. A range that starts at 0
    /// includes the held bytes.
    edits: Vec<(Range<usize>, EventEdit)>,
    /// Offset in the current frame at which its last complete block ends. 0: no block ends in the frame.
    complete_until: usize,
    /// Buffer of the returned frames. Its memory is reused after these frames have been written.
    out: BytesMut,
    /// Whether the block whose final CR ended the last frame was removed. If so, an LF at the start of the next
    /// frame is removed too. `None`: the last frame did not end with such a CR.
    removed_before_lf: Option<bool>,
    /// Whether the current block is longer than [`MAX_HELD_BYTES`]. Its bytes are forwarded as they
    /// arrive.
    is_long: bool,
    /// Whether the usage event that the client requested has passed, or the client receives usage anyway. From
    /// then on, all bytes are forwarded.
    is_done: bool,
    is_removed: bool,
    /// Whether the usage of an event could not be removed. The client then received usage that it did not
    /// request.
    pub has_failed: bool,
    /// The `system_fingerprint` of the server, with its quotes. Empty: the server sends no
    /// fingerprint. `None`: not known.
    pub fingerprint: Option<Bytes>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum EventEdit {
    Remove,
    /// Changes nothing. The event follows an event with a finish reason.
    Pass,
    Members {
        /// Whether the `usage` member is removed.
        has_usage: bool,
        /// Byte range of the `usage` member in the frame. `None`: not known, so the filter must search for the
        /// member.
        usage_at: Option<Range<usize>>,
        needs_fingerprint: bool,
    },
}

/// The parts of an event that the filter needs. The default is a block, such as a comment, that the filter does
/// not change.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventParts {
    pub is_event: bool,
    /// Whether the event is the usage event, which has `usage` and no choice.
    pub is_usage_event: bool,
    /// Whether the event has usage that the client did not request.
    pub has_usage: bool,
    /// Byte range of the `usage` member in the current frame. `None`: the range is not known.
    pub usage_at: Option<Range<usize>>,
    pub has_finish: bool,
}

/// Maximum length of a held block, in bytes. Events with token ids or logprobs can be longer, but the gateway
/// requests no continuous usage for requests with these options.
pub(super) const MAX_HELD_BYTES: usize = 64 << 10;
/// The bytes of an inserted `system_fingerprint` member before its value.
const FINGERPRINT_START: &[u8] = br#","system_fingerprint":"#;

impl UsageFilter {
    /// A usage filter for a stream. `removes_event`: whether the usage event is removed. `fingerprint`: the
    /// `system_fingerprint` of an earlier stream of the server.
    pub(super) fn new(removes_event: bool, fingerprint: Option<Bytes>) -> Self {
        Self {
            removes_event,
            fingerprint,
            ..Self::default()
        }
    }

    /// Records that a block ends at offset `end` of the current frame. Returns whether the block is the usage
    /// event and will be removed.
    pub(super) fn on_block(&mut self, end: usize, event: EventParts) -> bool {
        let start = std::mem::replace(&mut self.complete_until, end);
        let is_long = std::mem::take(&mut self.is_long);
        if self.is_done {
            return false;
        }
        let EventParts {
            is_event,
            is_usage_event,
            has_usage,
            usage_at,
            has_finish,
        } = event;
        // Some servers send the usage event twice.
        self.is_done = is_usage_event && !self.removes_event;
        let needs_fingerprint = has_finish && self.removes_event && !is_long;
        let was_after_finish = self.is_after_finish;
        if is_event {
            self.is_after_finish = needs_fingerprint;
        }
        if is_long {
            self.has_failed |= has_usage || (is_usage_event && self.removes_event);
            return false;
        }
        let edit = match is_usage_event {
            true if self.removes_event => EventEdit::Remove,
            false if has_usage || needs_fingerprint => EventEdit::Members {
                has_usage,
                usage_at,
                needs_fingerprint,
            },
            _ if is_event && was_after_finish => EventEdit::Pass,
            _ => return false,
        };
        self.edits.push((start..end, edit));
        is_usage_event
    }

    /// Whether the current block would be removed if it were the usage event.
    pub(super) fn is_searching(&self) -> bool {
        !self.is_done && !self.is_long
    }

    /// Stops all changes, because the client receives usage anyway.
    pub(super) fn stop(&mut self) {
        self.is_done = true;
    }

    /// The bytes to forward, after all blocks of `frame` have been reported. They can be empty.
    pub(super) fn forward(&mut self, frame: Bytes) -> Bytes {
        if frame.is_empty() {
            return frame;
        }
        let mut removed_before_lf = self.removed_before_lf.take();
        if !frame.starts_with(b"\n") {
            removed_before_lf = None;
        }
        let begun = usize::from(removed_before_lf.is_some());
        let complete = std::mem::take(&mut self.complete_until).max(begun);
        if complete == frame.len() && frame.ends_with(b"\r") {
            self.removed_before_lf = Some(false);
        }
        let is_removal = |(range, edit): &(Range<usize>, EventEdit)| {
            range.end == complete && *edit == EventEdit::Remove
        };
        let ends_with_removal = self.edits.last().is_some_and(is_removal);
        let is_removed_lf = removed_before_lf == Some(true);
        let is_unchanged = self.edits.is_empty() && self.waiting.is_empty() && !is_removed_lf;
        if is_unchanged && self.held.is_empty() {
            if self.is_passing(frame.len() - complete) {
                return frame;
            }
            self.held.extend_from_slice(&frame[complete..]);
            return frame.slice(..complete);
        }
        self.out
            .reserve(self.held.len() + self.waiting.len() + frame.len());
        if removed_before_lf == Some(false) {
            self.write(b"\n");
        }
        self.write_blocks(&frame, begun, complete);
        self.removed_before_lf = self
            .removed_before_lf
            .map(|_| ends_with_removal && self.is_removed);
        let rest = &frame[complete..];
        if self.is_passing(self.held.len() + rest.len()) {
            self.release(&[]);
            let held = std::mem::take(&mut self.held);
            self.write(&held);
            self.write(rest);
        } else {
            self.held.extend_from_slice(rest);
        }
        self.out.split().freeze()
    }

    /// Returns the held bytes, with the edit of an event that the end of the stream completes. Called when the
    /// stream has ended.
    pub(super) fn flush(&mut self) -> Bytes {
        let held = std::mem::take(&mut self.held);
        match self.edits.pop() {
            Some((_, edit)) => self.write_event(&held, edit, None),
            None => self.write(&held),
        }
        self.release(&[]);
        self.out.split().freeze()
    }

    /// Whether an incomplete block of this length is forwarded instead of held back.
    fn is_passing(&mut self, length: usize) -> bool {
        self.is_long |= !self.is_done && length > MAX_HELD_BYTES;
        self.is_long || self.is_done
    }

    /// Writes the held bytes and the frame's complete blocks, which are in the range from `start` to
    /// `complete`, with the edits applied.
    fn write_blocks(&mut self, frame: &[u8], mut start: usize, complete: usize) {
        if start >= complete {
            return;
        }
        let mut held = std::mem::take(&mut self.held);
        let mut edits = std::mem::take(&mut self.edits);
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
        self.held = held;
        self.edits = edits;
    }

    /// Appends bytes to the output or, if an event waits for the fingerprint, to that event.
    fn write(&mut self, bytes: &[u8]) {
        if self.waiting.len() + bytes.len() > MAX_HELD_BYTES {
            self.release(&[]);
        }
        let out = if self.waiting.is_empty() {
            &mut self.out
        } else {
            &mut self.waiting
        };
        out.extend_from_slice(bytes);
    }

    /// Writes the event that waits for the fingerprint, if any. An empty `fingerprint` is not inserted.
    fn release(&mut self, fingerprint: &[u8]) {
        if self.waiting.is_empty() {
            return;
        }
        let (before, after) = self.waiting.split_at(self.waiting_fingerprint_at);
        self.out.extend_from_slice(before);
        if fingerprint.is_empty() {
            self.lacks_fingerprint = true;
        } else {
            self.out.extend_from_slice(FINGERPRINT_START);
            self.out.extend_from_slice(fingerprint);
            self.written_fingerprint = Bytes::copy_from_slice(fingerprint);
        }
        self.out.extend_from_slice(after);
        self.waiting.clear();
        self.waiting_fingerprint_at = 0;
    }

    /// Removes the usage event and inserts its fingerprint into the event that waits for it. If removal would
    /// withhold content from the client, writes the usage event unchanged.
    fn remove_usage_event(&mut self, event: &[u8]) {
        let members = EventMembers::read(event);
        let fingerprint = members
            .as_ref()
            .and_then(EventMembers::fingerprint)
            .unwrap_or_default();
        let is_lost = self.waiting.is_empty()
            && !fingerprint.is_empty()
            && *fingerprint != *self.written_fingerprint
            && (self.lacks_fingerprint || !self.written_fingerprint.is_empty());
        if members
            .as_ref()
            .is_none_or(EventMembers::has_unknown_content)
            || is_lost
        {
            self.release(&[]);
            self.has_failed = true;
            self.out.extend_from_slice(event);
        } else {
            self.release(fingerprint);
            self.is_removed = true;
        }
        if self.fingerprint.as_deref() != Some(fingerprint) {
            self.fingerprint = Some(Bytes::copy_from_slice(fingerprint));
        }
    }

    /// Writes a complete event with the edit applied. `at`: the event's offset in the frame, if all of it is in
    /// the frame.
    fn write_event(&mut self, event: &[u8], edit: EventEdit, at: Option<usize>) {
        if edit == EventEdit::Remove {
            return self.remove_usage_event(event);
        }
        self.release(&[]);
        let EventEdit::Members {
            has_usage,
            usage_at,
            needs_fingerprint,
        } = edit
        else {
            return self.write(event);
        };
        if !needs_fingerprint && let Some(member) = known_member(event, usage_at, at) {
            self.out.extend_from_slice(&event[..member.start]);
            self.out.extend_from_slice(&event[member.end..]);
            return;
        }
        let members = EventMembers::read(event);
        let mut cuts = Vec::new();
        if has_usage {
            cuts = members
                .as_ref()
                .map(EventMembers::usage_cuts)
                .unwrap_or_default();
            self.has_failed |= cuts.is_empty();
        }
        let mut insertion = None;
        if needs_fingerprint && let Some(members) = &members {
            if let Some(fingerprint) = members.fingerprint() {
                self.written_fingerprint = Bytes::copy_from_slice(fingerprint);
            }
            if !members.has_fingerprint_member() {
                insertion = members.end_of_choices();
            }
        }
        let begin = self.out.len();
        let inserted_at = self.write_without(event, &cuts, insertion);
        self.lacks_fingerprint |= needs_fingerprint && insertion.is_none();
        if let Some(at) = inserted_at {
            self.waiting = self.out.split_off(begin);
            self.waiting_fingerprint_at = at - begin;
            // With a known fingerprint, the event need not wait.
            if let Some(known) = self.fingerprint.clone().filter(|known| !known.is_empty()) {
                self.release(&known);
            }
        }
    }

    /// Writes an event without `cuts`. Returns the output offset that corresponds to the event's offset `mark`.
    /// `None`: no mark, or the mark is inside a cut.
    fn write_without(
        &mut self,
        event: &[u8],
        cuts: &[Range<usize>],
        mark: Option<usize>,
    ) -> Option<usize> {
        let mut from = 0;
        let mut marked = None;
        for cut in cuts
            .iter()
            .cloned()
            .chain(std::iter::once(event.len()..event.len()))
        {
            if let Some(mark) = mark.filter(|mark| (from..=cut.start).contains(mark)) {
                marked = marked.or(Some(self.out.len() + mark - from));
            }
            self.out.extend_from_slice(&event[from..cut.start]);
            from = cut.end;
        }
        marked
    }
}

/// The byte range of the `usage` member in an event. `None`: not known. `usage_at`: its range in the frame.
/// `at`: the offset of the event in the frame.
fn known_member(
    event: &[u8],
    usage_at: Option<Range<usize>>,
    at: Option<usize>,
) -> Option<Range<usize>> {
    let at = at?;
    let usage = usage_at?;
    let member = usage.start.checked_sub(at)?..usage.end.checked_sub(at)?;
    usage_splitter::is_at(event, &member).then_some(member)
}

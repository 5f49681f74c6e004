//! The handling of each event of a stream by [`StreamSplicer`].

use super::super::edit::{self, NULL};
use super::super::event::{Event, numbers};
use super::super::reasons::{ContinuationRefusal, InterruptionCause};
use super::{Action, ContinuedStream, HEAD, IDS_STEP, Position, StreamSplicer};
use std::borrow::Cow;
use std::ops::Range;

/// Maximum expected text of one token, in bytes. An engine that writes its prompt as text exceeds it.
const MAX_TOKEN_TEXT_BYTES: usize = 48;

/// The members of a continued stream that get the values of the first stream.
const IDENTITY: [&str; 2] = ["id", "created"];

impl StreamSplicer {
    pub(super) fn on_event(&mut self, bytes: &[u8]) -> Action {
        if bytes.starts_with(b":") || bytes.trim_ascii().is_empty() {
            return Action::Keep;
        }
        let Some(event) = self.layout.read(self.plan.is_chat, bytes) else {
            self.refuse(ContinuationRefusal::Unreadable);
            return Action::Keep;
        };
        if event.is_done {
            if self.text.is_repeating() || self.lacks_continuation() {
                return self.diverge();
            }
            self.is_done = true;
            return Action::Keep;
        }
        let is_aborted = event
            .finish
            .as_ref()
            .is_some_and(|finish| &bytes[finish.clone()] == b"abort");
        if self.text.shown > 0 && self.refusal.is_none() && (event.is_error || is_aborted) {
            self.interruption = Some(if is_aborted {
                InterruptionCause::Aborted
            } else {
                InterruptionCause::EngineFailed
            });
            return Action::Hold;
        }
        self.head.get_or_insert_with(|| {
            event
                .head
                .clone()
                .map(|range| range.map(|range| Box::from(&bytes[range])))
        });
        if event.choices > 1 || event.is_other_choice {
            self.refuse(ContinuationRefusal::Choices);
        }
        if !self.on_prompt(&event, bytes) {
            return self.diverge();
        }
        let Some(repeated) = self.on_output(&event, bytes) else {
            return self.diverge();
        };
        self.is_finished |= event.finish.is_some();
        self.has_usage |= event.usage.is_some();
        self.has_last_usage |= event.usage.is_some() && event.choices == 0;
        if self.is_dropped(&event, repeated) {
            return Action::Drop;
        }
        self.edit(&event, bytes, repeated)
    }

    /// Whether the current backend was asked to continue the stream but has sent neither a token nor a finish
    /// reason.
    fn lacks_continuation(&self) -> bool {
        let is_new = |continued: ContinuedStream| self.tokens == continued.tokens;
        self.continued.is_some_and(is_new) && !self.is_finished && self.refusal.is_none()
    }

    /// Records that the backend does not continue the stream. The client gets no bytes of that backend.
    fn diverge(&mut self) -> Action {
        self.interruption = Some(InterruptionCause::Diverged);
        Action::Drop
    }

    /// Reads the token ids of the prompt. Returns `false` if a continuing backend reports another prompt than
    /// the gateway sent.
    fn on_prompt(&mut self, event: &Event, bytes: &[u8]) -> bool {
        let ids = event
            .prompt_ids
            .clone()
            .and_then(|ids| numbers(&bytes[ids])?.collect());
        let ids: Option<Vec<u32>> = ids;
        match &mut self.continued {
            None => {
                if let Some(ids) = ids
                    && self.prompt_tokens.is_none()
                {
                    self.prompt_tokens = Some(ids.len() as u64);
                    if self.plan.is_exact && self.refusal.is_none() {
                        self.prompt_ids = ids;
                    }
                }
                true
            }
            Some(continued) if self.plan.is_exact && !continued.is_checked => {
                continued.is_checked = true;
                // After a refusal the splicer has no ids for a comparison.
                let sent = self
                    .prompt_ids
                    .iter()
                    .chain(self.ids.iter().take(continued.tokens));
                self.refusal.is_some() || ids.is_some_and(|ids| ids.iter().eq(sent))
            }
            Some(_) => true,
        }
    }

    /// Reads the output of an event. Returns how many bytes of its text the client already has. `None`: the
    /// text differs from the client's text.
    fn on_output(&mut self, event: &Event, bytes: &[u8]) -> Option<usize> {
        if event.choices == 0 {
            return Some(0);
        }
        self.has_reasoning |= event.is_reasoning;
        self.has_other_output |= event.has_other_output;
        let ids = event.ids.clone().and_then(|ids| self.on_ids(&bytes[ids]));
        let tokens = ids.unwrap_or(usize::from(event.text.is_some()));
        let has_tokens = event.text.is_some() || event.finish.is_some();
        self.has_all_ids &= ids.is_some() || !has_tokens;
        self.tokens += tokens;
        let is_whole = event.finish.is_none() || !self.text.is_repeating();
        let Some(text) = event.text.clone() else {
            let is_shown = event.has_logprobs || (self.plan.shows_ids && tokens > 0);
            self.has_shown_more |= is_shown;
            return is_whole.then_some(0);
        };
        let Ok(text) = std::str::from_utf8(&bytes[text]) else {
            self.refuse(ContinuationRefusal::Unreadable);
            return self.continued.is_none().then_some(0);
        };
        if self.begins_with_prompt(text) {
            return None;
        }
        let repeated = self.text.show(text, self.refusal.is_none())?;
        self.has_shown_more = false;
        self.latest = Position {
            tokens: self.tokens,
            bytes: self.text.generated,
        };
        if tokens == 1 {
            self.certain = [self.certain[1], self.latest];
        }
        if self.plan.is_exact {
            let first = if self.plan.is_greedy {
                self.certain[0].bytes
            } else {
                self.text.shown
            };
            self.text.forget_before(first);
        }
        let is_whole = event.finish.is_none() || !self.text.is_repeating();
        is_whole.then_some(repeated)
    }

    /// Whether `text` is the first text of a continued stream, and repeats its prompt.
    fn begins_with_prompt(&mut self, text: &str) -> bool {
        let Some(continued) = &mut self.continued else {
            return false;
        };
        if !self.plan.is_exact
            || std::mem::replace(&mut continued.has_text, true)
            || self.text.is_repeating()
        {
            return false;
        }
        let tokens = self.tokens - continued.tokens;
        self.is_decoded_prompt(text, tokens)
    }

    /// Keeps token ids for a continuation. Returns their number. `None`: `array` has no valid token
    /// ids.
    fn on_ids(&mut self, array: &[u8]) -> Option<usize> {
        let is_kept = self.plan.is_exact && self.refusal.is_none();
        let mut count = 0;
        for id in numbers(array)? {
            let id = id?;
            count += 1;
            if is_kept {
                // Adds capacity for a few more events, because by default the vector would double its capacity.
                if self.ids.capacity() == self.ids.len() {
                    self.ids.reserve_exact(IDS_STEP);
                }
                self.ids.push(id);
            }
        }
        Some(count)
    }

    /// Whether the first text of a continuation contains the prompt: the text is longer than its tokens can be,
    /// or contains the end of the earlier output.
    fn is_decoded_prompt(&self, text: &str, tokens: usize) -> bool {
        let end = self.text.end();
        let has_earlier_text = text.len() > self.text.shown && text.contains(end);
        text.trim().len() > MAX_TOKEN_TEXT_BYTES * tokens.max(1)
            || (has_earlier_text && !end.is_empty())
    }

    /// Whether to drop the event: it has only token ids that the client did not request, or only a role or text
    /// that the client already has. `repeated`: number of bytes of the event's text that the client has.
    fn is_dropped(&self, event: &Event, repeated: usize) -> bool {
        if event.finish.is_some() || event.has_logprobs || event.choices == 0 {
            return false;
        }
        let text_bytes = event.text.as_ref().map_or(0, Range::len);
        // vLLM writes an event for tokens without text if token ids are requested.
        let is_for_ids = event.is_empty_delta && event.ids.is_some() && !self.plan.shows_ids;
        let is_later = self.continued.is_some() && !event.has_other_output;
        let is_repeated = text_bytes > 0 && repeated == text_bytes;
        is_for_ids || (is_later && (is_repeated || (text_bytes == 0 && event.role.is_some())))
    }

    /// Adds the edits that remove token ids and text that the client must not get, and that replace the event's
    /// id and time by those of the first stream.
    fn edit(&mut self, event: &Event, bytes: &[u8], repeated: usize) -> Action {
        let edits = &mut self.edits;
        if !self.plan.shows_ids {
            edits.extend(event.ids.clone().map(|ids| (ids, NULL.into())));
        }
        // The client's prompt differs from the prompt of a continuation.
        if !self.plan.shows_ids || self.continued.is_some() {
            edits.extend(event.prompt_ids.clone().map(|ids| (ids, NULL.into())));
        }
        if let (Some(continued), Some(head)) = (self.continued, &self.head) {
            for (name, (range, first)) in HEAD.iter().zip(event.head.iter().zip(head)) {
                if let (true, Some(range), Some(first)) = (IDENTITY.contains(name), range, first) {
                    edits.push((range.clone(), first.to_vec().into()));
                }
            }
            edits.extend(event.role.clone().map(|role| (role, Cow::default())));
            if let Some(text) = &event.text
                && repeated > 0
            {
                edits.push((text.start..text.start + repeated, Cow::default()));
            }
            if let Some(usage) = &event.usage {
                let prompt_tokens = self.prompt_tokens;
                let earlier = continued.tokens as u64;
                edit::add_usage(
                    bytes,
                    usage,
                    earlier,
                    prompt_tokens,
                    self.has_reasoning,
                    edits,
                );
            }
        }
        if edits.is_empty() {
            Action::Keep
        } else {
            Action::Edit
        }
    }
}

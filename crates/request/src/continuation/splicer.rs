//! Joins the streams of several backends into one stream.
//!
//! Only whole events are forwarded, so that the stream of a backend can end after any of them. While a stream
//! can be continued, the splicer keeps the data for a continuation: the token ids or the text of the output.
//!
//! The next backend must begin after a token whose text was sent completely. An engine holds text back: the
//! bytes of an unfinished character, and text that may become a marker. So the next backend begins after a
//! token whose event had text. If an event has several tokens, the text of the last of them may be incomplete.
//! A greedy engine therefore begins after the last event with exactly one token and repeats the rest, and the
//! splicer compares the repetition with the client's text. A sampling engine would not repeat the same text, so
//! it begins after the last event with text. Without a repetition, the splicer checks the first text of the new
//! backend. If it contains the text so far, or is longer than its tokens can be, the engine wrote its prompt as
//! text, as vLLM does after an unfinished character.

mod events;

use super::edit::{self, Edit};
use super::event::{Event, HEAD, event_end};
use super::layout::Layout;
use super::plan::ContinuationPlan;
use super::reasons::{ContinuationRefusal, InterruptionCause};
use super::request::Continued;
use super::shown_text::ShownText;
use bytes::{Bytes, BytesMut};
use tokenweir_protocol::limits::memory_charge::{Charge, MemoryLimits};

/// Reads the stream of each backend in turn, and writes the stream of the client.
#[derive(Debug, Default)]
pub struct StreamSplicer {
    plan: ContinuationPlan,
    /// Counts the memory that the splicer keeps. `None` while the splicer restarts, and in the default value,
    /// which [`Self::new`] completes.
    charge: Option<Charge>,
    limits: MemoryLimits,
    /// Bytes that were added to `charge`.
    taken: usize,
    /// Whether the stream is forwarded unchanged.
    is_passive: bool,
    /// Why the stream cannot be continued. With a reason, the splicer keeps no data for a continuation.
    refusal: Option<ContinuationRefusal>,
    /// The bytes of an event whose end has not arrived.
    partial: BytesMut,
    /// Events that are held back. The client gets them only if the stream is not continued.
    held: BytesMut,
    layout: Layout,
    edits: Vec<Edit>,
    /// Why the current backend cannot complete the stream, according to its events. `None`: the events show no
    /// fault.
    interruption: Option<InterruptionCause>,
    /// The values of the members named in [`HEAD`], from the first event. `None`: no event was read.
    head: Option<[Option<Box<[u8]>>; HEAD.len()]>,
    prompt_ids: Vec<u32>,
    prompt_tokens: Option<u64>,
    ids: Vec<u32>,
    /// Number of tokens of the output so far.
    tokens: usize,
    has_all_ids: bool,
    has_reasoning: bool,
    has_other_output: bool,
    is_finished: bool,
    has_usage: bool,
    /// Whether the event with the usage of the whole stream was read.
    has_last_usage: bool,
    is_done: bool,
    text: ShownText,
    /// The position after the last event with text.
    latest: Position,
    /// The positions after the last two events with text and exactly one token.
    certain: [Position; 2],
    /// Whether the client has received events after `latest` that have tokens or log probabilities but no text.
    has_shown_more: bool,
    /// How the current stream continues an earlier one. `None`: the current stream is the first.
    continued: Option<ContinuedStream>,
}

/// A position in the output of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    /// Number of output tokens before the position.
    tokens: usize,
    /// Number of bytes of output text before the position.
    bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct ContinuedStream {
    /// Number of output tokens of the earlier streams.
    tokens: usize,
    /// Whether the prompt that the backend repeats has been compared with the prompt that the gateway sent.
    is_checked: bool,
    has_text: bool,
}

/// The handling of an event by the splicer.
enum Action {
    Keep,
    Drop,
    Hold,
    /// Forward the event with the edits of the splicer.
    Edit,
}

/// The capacity for token ids grows in steps of this many ids.
const IDS_STEP: usize = 100;
/// The splicer adds memory to its charge in steps of this many bytes.
const MEMORY_STEP: usize = 4 << 10;
/// Maximum length of a server-sent event, in bytes. Beginning with a longer event, the splicer forwards the
/// stream unchanged. The ids of a prompt of one million tokens take about this many bytes.
const MAX_EVENT_BYTES: usize = 8 << 20;

impl StreamSplicer {
    /// A splicer for the stream of a request with this plan. `charge` counts the kept memory, within `limits`.
    pub fn new(
        plan: Result<ContinuationPlan, ContinuationRefusal>,
        charge: Charge,
        limits: MemoryLimits,
    ) -> Self {
        let refusal = plan.as_ref().err().copied();
        let passive = || ContinuationPlan {
            shows_ids: true,
            ..ContinuationPlan::default()
        };
        Self {
            plan: plan.unwrap_or_else(|_| passive()),
            charge: Some(charge),
            limits,
            is_passive: refusal.is_some(),
            refusal,
            has_all_ids: true,
            ..Self::default()
        }
    }

    /// Whether the splicer reads the stream. `false`: it forwards the stream unchanged.
    pub const fn is_active(&self) -> bool {
        !self.is_passive
    }

    /// Resets the splicer. Called when the request is sent to another backend before any output.
    pub fn restart(&mut self) {
        if !self.is_passive
            && let Some(charge) = self.charge.take()
        {
            // The refusal is kept, because the memory limit applies to the whole request.
            let refusal = self
                .refusal
                .filter(|reason| *reason == ContinuationRefusal::Memory);
            let fresh = Self::new(Ok(self.plan.clone()), charge, self.limits);
            *self = Self {
                taken: self.taken,
                refusal,
                ..fresh
            };
        }
    }

    /// Stops splicing, because the response is no readable event stream. All later bytes are forwarded
    /// unchanged.
    pub fn ignore(&mut self) {
        self.is_passive = true;
        self.refuse(ContinuationRefusal::Unreadable);
    }

    /// Why the current backend cannot complete the stream, according to its events. `None`: the events show no
    /// fault.
    pub const fn interruption(&self) -> Option<InterruptionCause> {
        self.interruption
    }

    /// Whether the last event of the stream was read.
    pub const fn is_done(&self) -> bool {
        self.is_done
    }

    /// Why the stream cannot be continued. `None`: no reason is known.
    pub const fn refusal(&self) -> Option<ContinuationRefusal> {
        self.refusal
    }

    /// Number of tokens of the output so far.
    pub const fn tokens(&self) -> usize {
        self.tokens
    }

    /// Records that the stream will not be continued.
    pub fn refuse(&mut self, reason: ContinuationRefusal) {
        self.refusal.get_or_insert(reason);
        self.ids = Vec::new();
        self.prompt_ids = Vec::new();
        self.text.tail = String::new();
    }

    /// Reads the next bytes of the stream. Returns the bytes for the client, which can be empty.
    pub fn push(&mut self, part: Bytes) -> Bytes {
        if !self.is_active() {
            return part;
        }
        // A part of whole events, as vLLM writes them, is not copied.
        let part = if self.partial.is_empty() {
            part
        } else {
            // Earlier bytes were already searched, except the last two, in which an end can begin.
            let searched = self.partial.len().saturating_sub(2);
            self.partial.extend_from_slice(&part);
            if event_end(&self.partial, searched).is_none() {
                return self.ignore_if_too_long(Bytes::new());
            }
            self.partial.split().freeze()
        };
        let mut edited: Option<BytesMut> = None;
        let mut at = 0;
        while let Some(end) = event_end(&part, at) {
            let event = &part[at..end];
            let action = if self.interruption.is_some() {
                Action::Hold
            } else {
                self.on_event(event)
            };
            if !matches!(action, Action::Keep) && edited.is_none() {
                let mut copy = BytesMut::with_capacity(part.len());
                copy.extend_from_slice(&part[..at]);
                edited = Some(copy);
            }
            match (&mut edited, action) {
                (_, Action::Hold) => self.held.extend_from_slice(event),
                (Some(edited), Action::Edit) => edit::apply(&mut self.edits, event, edited),
                (Some(edited), Action::Keep) => edited.extend_from_slice(event),
                _ => {}
            }
            at = end;
        }
        self.partial.extend_from_slice(&part[at..]);
        self.check_memory();
        let forwarded = edited.map_or_else(|| part.slice(..at), BytesMut::freeze);
        if self.partial.is_empty() {
            return forwarded;
        }
        self.ignore_if_too_long(forwarded)
    }

    /// Returns `forwarded`. If the current event is too long to be kept, the stream is forwarded unchanged from
    /// the beginning of this event on.
    fn ignore_if_too_long(&mut self, forwarded: Bytes) -> Bytes {
        if self.partial.len() <= MAX_EVENT_BYTES {
            return forwarded;
        }
        self.ignore();
        [forwarded, self.partial.split().freeze()].concat().into()
    }

    /// Returns the events that were held back. Called after the continuation was refused.
    pub fn release(&mut self) -> Bytes {
        let held = self.held.split().freeze();
        if self.is_done {
            return held;
        }
        let partial = self.partial.split();
        if self.interruption == Some(InterruptionCause::Diverged) {
            return Bytes::new();
        }
        self.interruption = None;
        let held = self.push(held);
        self.partial = partial;
        held
    }

    /// Completes a stream that had its finish reason by writing the missing events, which
    /// [`release`](Self::release) returns. `reports_usage`: whether the request asks for usage. Returns `false`
    /// without a finish reason, or if the usage is not known.
    pub fn complete(&mut self, reports_usage: bool) -> bool {
        let is_read = matches!(self.refusal, None | Some(ContinuationRefusal::Memory));
        if !(self.is_finished && is_read) || self.is_done || self.is_passive {
            return false;
        }
        let usage = if self.has_last_usage || !(reports_usage || self.has_usage) {
            Vec::new()
        } else if let Some(usage) = self.usage_event() {
            usage
        } else {
            return false;
        };
        self.partial.clear();
        self.held.clear();
        self.interruption = None;
        self.is_done = true;
        self.held.extend_from_slice(&usage);
        self.held.extend_from_slice(b"data: [DONE]\n\n");
        true
    }

    /// The event with the usage of the whole stream. `None`: the usage is not known.
    fn usage_event(&self) -> Option<Vec<u8>> {
        if !self.has_all_ids {
            return None;
        }
        let head = self.head.as_ref()?;
        let prompt = self.prompt_tokens?;
        let output = self.tokens as u64;
        let total = prompt.checked_add(output)?;
        let mut event = b"data: {".to_vec();
        for (name, value) in HEAD.iter().zip(head) {
            if let Some(value) = value {
                event.extend_from_slice(format!("\"{name}\":").as_bytes());
                event.extend_from_slice(value);
                event.push(b',');
            }
        }
        let usage = format!(
            "\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{output}}}}}\n\n"
        );
        event.extend_from_slice(usage.as_bytes());
        Some(event)
    }

    /// Returns the last event of a stream that ended regularly without its last blank line, and adds the line.
    /// An incomplete event is left out, because a client would read it as an event with a blank line. The rest
    /// of an unreadable stream is returned unchanged.
    pub fn finish(&mut self) -> Bytes {
        let partial = self.partial.split();
        let last = [&*partial, b"\n\n"].concat();
        if Event::read(self.plan.is_chat, &last).is_some() {
            return self.push(last.into());
        }
        // The events of this stream have another form, and were forwarded unchanged.
        let is_unreadable = self.refusal == Some(ContinuationRefusal::Unreadable);
        if is_unreadable {
            partial.freeze()
        } else {
            Bytes::new()
        }
    }

    /// Why no backend can continue the stream now, before its request is built.
    pub fn check(&self) -> Result<(), ContinuationRefusal> {
        self.position().map(|_| ())
    }

    /// The body of the request that continues the stream, derived from the first request's body. Fails if the
    /// stream cannot be continued.
    pub fn request(&self, body: &[u8]) -> Result<Bytes, ContinuationRefusal> {
        let position = self.position()?;
        let continued = if self.plan.is_exact {
            let ids = self
                .ids
                .get(..position.tokens)
                .ok_or(ContinuationRefusal::NoTokenIds)?;
            Continued::Ids {
                prompt: &self.prompt_ids,
                output: ids,
            }
        } else {
            Continued::Text(&self.text.tail)
        };
        self.plan.request(body, &continued, position.tokens as u64)
    }

    /// Switches to the stream of the next backend, whose bytes later calls of `push` pass.
    pub fn switch(&mut self) {
        let Ok(position) = self.position() else {
            return;
        };
        self.ids.truncate(position.tokens);
        self.tokens = position.tokens;
        self.text.generated = position.bytes;
        self.latest = position;
        self.certain = [position; 2];
        self.partial.clear();
        self.held.clear();
        self.interruption = None;
        self.continued = Some(ContinuedStream {
            tokens: position.tokens,
            is_checked: false,
            has_text: false,
        });
    }

    /// The position after which another backend continues, or why no backend can continue the stream.
    fn position(&self) -> Result<Position, ContinuationRefusal> {
        use ContinuationRefusal as R;
        let Self { plan, latest, .. } = self;
        let refused = match self.refusal {
            Some(refusal) => Some(refusal),
            None if self.is_finished => Some(R::Finished),
            None if self.has_other_output => Some(R::ToolCall),
            None if plan.is_exact && !(self.has_all_ids && self.prompt_tokens.is_some()) => {
                Some(R::NoTokenIds)
            }
            None if !plan.is_exact && self.has_reasoning => Some(R::Reasoning),
            None => None,
        };
        if let Some(refused) = refused {
            return Err(refused);
        }
        let has_tokens_left = |position: &Position| {
            plan.max_tokens
                .is_none_or(|max_tokens| (position.tokens as u64) < max_tokens)
        };
        let certain = self
            .certain
            .iter()
            .rev()
            .find(|position| has_tokens_left(position));
        let position = match certain {
            Some(certain) if plan.is_exact && plan.is_greedy => certain,
            _ => latest,
        };
        if !has_tokens_left(position) {
            return Err(R::Finished);
        }
        let repeats_nothing = position.bytes == self.text.shown && !self.has_shown_more;
        if (plan.has_logprobs || plan.shows_ids) && !repeats_nothing {
            return Err(if plan.has_logprobs {
                R::Logprobs
            } else {
                R::Position
            });
        }
        let is_continuable = plan.is_exact || self.text.shown > 0;
        if is_continuable {
            Ok(*position)
        } else {
            Err(R::Position)
        }
    }

    /// Number of bytes that are kept for a continuation.
    pub(super) fn kept_bytes(&self) -> usize {
        let ids = self.ids.capacity() + self.prompt_ids.capacity();
        ids * size_of::<u32>() + self.text.tail.capacity()
    }

    /// Adds the growth of the kept data to `charge`. If a memory limit is exceeded, the stream cannot be
    /// continued.
    fn check_memory(&mut self) {
        let kept = self.kept_bytes();
        if kept > self.taken {
            let more = (kept - self.taken).next_multiple_of(MEMORY_STEP);
            self.taken += more;
            let added = self
                .charge
                .as_mut()
                .map(|charge| charge.add(more, &self.limits));
            if added.is_some_and(|added| added.is_err()) {
                self.refuse(ContinuationRefusal::Memory);
            }
        }
    }
}

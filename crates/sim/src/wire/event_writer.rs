//! Writes the events of a stream.

use super::formats;
use super::simulated_response::SimulatedResponse;
use super::wire_format::{ChoiceChunk, EventContext};
use bytes::BytesMut;

/// The number of tokens that the engine has produced for a response.
pub trait TokenProgress {
    /// Number of tokens produced for one choice.
    fn produced(&self, choice: usize) -> u32;
    /// Number of prompt tokens found in the prefix cache.
    fn cached_tokens(&self) -> u32;
}

/// The result of [`EventWriter::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextEvent {
    /// One event was written.
    Event,
    /// The engine must produce more tokens first.
    Wait,
    /// The stream has ended.
    End,
}

/// Writes a stream, one event per call.
#[derive(Debug)]
pub struct EventWriter {
    reply: SimulatedResponse,
    head: String,
    stage: StreamStage,
    /// Number of events written in this stage.
    number: usize,
    /// Number of events written in the stream.
    sequence: u32,
    /// Number of tokens sent for each choice.
    sent: Vec<u32>,
    /// The choice to write next.
    next_choice: usize,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamStage {
    Opening,
    Parts,
    Closing,
    Ended,
}

impl EventWriter {
    /// Starts a stream.
    pub fn new(reply: SimulatedResponse) -> Self {
        Self {
            head: formats::wire_format(reply.api).head(&reply),
            sent: vec![0; reply.answers.len()],
            reply,
            stage: StreamStage::Opening,
            number: 0,
            sequence: 0,
            next_choice: 0,
            text: String::new(),
        }
    }

    /// Appends the next event to `out` if it is available.
    pub fn next(&mut self, progress: &impl TokenProgress, out: &mut BytesMut) -> NextEvent {
        let dialect = formats::wire_format(self.reply.api);
        loop {
            let wrote = match self.stage {
                StreamStage::Opening => {
                    if self.number >= dialect.early()
                        && self.choice_with_new_tokens(progress).is_none()
                    {
                        return NextEvent::Wait;
                    }
                    let wrote = dialect.opening(&self.event_context(), out);
                    wrote || self.enter_stage(StreamStage::Parts)
                }
                StreamStage::Parts => match self.choice_with_new_tokens(progress) {
                    Some(choice) => self.write_next_chunk(choice, progress, out),
                    None if self.is_complete() => self.enter_stage(StreamStage::Closing),
                    None => return NextEvent::Wait,
                },
                StreamStage::Closing => {
                    let wrote =
                        dialect.closing(&self.event_context(), progress.cached_tokens(), out);
                    wrote || self.enter_stage(StreamStage::Ended)
                }
                StreamStage::Ended => return NextEvent::End,
            };
            if wrote {
                self.number += 1;
                self.sequence += 1;
                return NextEvent::Event;
            }
        }
    }

    /// Enters the next stage. Returns false, because no event is written.
    fn enter_stage(&mut self, stage: StreamStage) -> bool {
        self.stage = stage;
        self.number = 0;
        false
    }

    fn event_context(&self) -> EventContext<'_> {
        let Self { reply, head, number, sequence, .. } = self;
        EventContext { reply, head, number: *number, sequence: *sequence }
    }

    /// Returns the next choice, in turn, that has tokens to send.
    fn choice_with_new_tokens(&self, progress: &impl TokenProgress) -> Option<usize> {
        let choices = self.sent.len();
        let mut turns = (self.next_choice..self.next_choice + choices).map(|turn| turn % choices);
        turns.find(|&choice| progress.produced(choice) > self.sent[choice])
    }

    fn is_complete(&self) -> bool {
        self.sent.iter().zip(&self.reply.answers).all(|(&sent, answer)| sent >= answer.tokens)
    }

    fn write_next_chunk(
        &mut self,
        choice: usize,
        progress: &impl TokenProgress,
        out: &mut BytesMut,
    ) -> bool {
        let answer = self.reply.answers[choice];
        let tokens = progress.produced(choice);
        self.text.clear();
        answer.write(self.sent[choice]..tokens, &mut self.text);
        self.sent[choice] = tokens;
        self.next_choice = (choice + 1) % self.sent.len();
        let finish = (tokens >= answer.tokens).then_some(answer.finish);
        let part = ChoiceChunk { choice, text: &self.text, tokens, finish };
        formats::wire_format(self.reply.api).part(&self.event_context(), &part, out)
    }
}

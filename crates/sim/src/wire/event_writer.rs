//! Writes the events of a stream.

use super::formats;
use super::simulated_response::SimulatedResponse;
use super::wire_format::{ChoiceChunk, EventContext};
use crate::generation_progress::GenerationProgress;
use bytes::BytesMut;

/// The result of [`EventWriter::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextEvent {
    Event,
    /// No event was written, because the next event needs more tokens from the engine.
    Wait,
    /// No event was written, because the stream has ended.
    End,
}

/// Writes a stream, one event per call.
#[derive(Debug)]
pub(crate) struct EventWriter {
    reply: SimulatedResponse,
    shared_text: String,
    stage: StreamStage,
    /// Number of events written in the current stage (opening, chunks or closing).
    stage_index: usize,
    sequence_number: u32,
    /// Number of tokens written for each choice.
    sent: Vec<u32>,
    /// The choice that is written next if it has new tokens. The writer takes the choices in turn.
    next_choice: usize,
    /// Buffer for the text of a chunk.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamStage {
    Opening,
    Chunks,
    Closing,
    Ended,
}

impl EventWriter {
    /// Creates a writer that has written no event of the stream yet.
    pub(crate) fn new(reply: SimulatedResponse) -> Self {
        Self {
            shared_text: formats::wire_format(reply.api).shared_text(&reply),
            sent: vec![0; reply.outputs.len()],
            reply,
            stage: StreamStage::Opening,
            stage_index: 0,
            sequence_number: 0,
            next_choice: 0,
            text: String::new(),
        }
    }

    /// Appends the next event to `out` if it is available.
    pub(crate) fn next(&mut self, progress: &GenerationProgress, out: &mut BytesMut) -> NextEvent {
        let format = formats::wire_format(self.reply.api);
        loop {
            let wrote = match self.stage {
                StreamStage::Opening => {
                    if self.stage_index >= format.early_event_count()
                        && self.choice_with_new_tokens(progress).is_none()
                    {
                        return NextEvent::Wait;
                    }
                    let wrote = format.write_opening(&self.event_context(progress), out);
                    wrote || self.enter_stage(StreamStage::Chunks)
                }
                StreamStage::Chunks => match self.choice_with_new_tokens(progress) {
                    Some(choice) => self.write_next_chunk(choice, progress, out),
                    None if self.is_complete() => self.enter_stage(StreamStage::Closing),
                    None => return NextEvent::Wait,
                },
                StreamStage::Closing => {
                    let wrote = format.write_closing(&self.event_context(progress), out);
                    wrote || self.enter_stage(StreamStage::Ended)
                }
                StreamStage::Ended => return NextEvent::End,
            };
            if wrote {
                self.stage_index += 1;
                self.sequence_number += 1;
                return NextEvent::Event;
            }
        }
    }

    /// Enters a stage. Always returns false, because it writes no event.
    fn enter_stage(&mut self, stage: StreamStage) -> bool {
        self.stage = stage;
        self.stage_index = 0;
        false
    }

    fn event_context(&self, progress: &GenerationProgress) -> EventContext<'_> {
        EventContext {
            reply: &self.reply,
            shared_text: &self.shared_text,
            cached_tokens: progress.cached_tokens(),
            stage_index: self.stage_index,
            sequence_number: self.sequence_number,
        }
    }

    /// Returns the first choice with unwritten tokens. The search begins with `next_choice`. `None`: all
    /// produced tokens were written.
    fn choice_with_new_tokens(&self, progress: &GenerationProgress) -> Option<usize> {
        let choices = self.sent.len();
        let mut turns = (self.next_choice..self.next_choice + choices).map(|turn| turn % choices);
        turns.find(|&choice| progress.produced(choice) > self.sent[choice])
    }

    /// Whether all tokens of all choices were written.
    fn is_complete(&self) -> bool {
        self.sent
            .iter()
            .zip(&self.reply.outputs)
            .all(|(&sent, output)| sent >= output.tokens)
    }

    fn write_next_chunk(
        &mut self,
        choice: usize,
        progress: &GenerationProgress,
        out: &mut BytesMut,
    ) -> bool {
        let output = self.reply.outputs[choice];
        let tokens = progress.produced(choice);
        self.text.clear();
        output.write(self.sent[choice]..tokens, &mut self.text);
        self.sent[choice] = tokens;
        self.next_choice = (choice + 1) % self.sent.len();
        let finish = (tokens >= output.tokens).then_some(output.finish);
        let chunk = ChoiceChunk {
            choice,
            text: &self.text,
            tokens,
            finish,
        };
        formats::wire_format(self.reply.api).write_chunk(&self.event_context(progress), &chunk, out)
    }
}

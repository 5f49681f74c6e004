//! What an observer saw of an answer.

use super::{Lost, Stall, UsageEvent, UsageSource};
use crate::openai::{EngineTimes, Excerpt, Finish, InBandError, Usage};
use crate::spread::{Bounds, ChunkTokens, Gap, Gaps, Scale, TokenCount};
use std::time::Duration;

/// What was seen of an answer as it passed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// The answer was an event stream.
    pub is_stream: bool,
    /// Events, the last one included.
    pub events: u64,
    /// Comment lines, such as keep-alives.
    pub comments: u64,
    /// Events with generated output.
    pub output_events: u64,
    /// Tokens in them, as far as events told exactly.
    pub tokens_in_events: u64,
    /// Those of them that did not tell.
    pub uncounted_events: u64,
    /// Tokens: counted where events tell, else estimated from the number of events. While the answer
    /// goes on, an event counts as one token; see [`Observed::scale_estimate`].
    pub estimated_tokens: u64,
    /// Times between output events of a choice, as they arrived: inter-chunk latency. Without
    /// those in which the client held the stream up.
    pub gaps: Gaps,
    /// Inter-token latency: each gap shared among the tokens that it brought, where they are known.
    pub itl: Gaps,
    /// Tokens in each event, where it told.
    pub chunk_tokens: ChunkTokens,
    /// Output that is not reasoning was seen.
    pub has_answer: bool,
    /// The answer has one of the phrases that are listed as refusals.
    pub has_refusal_phrase: bool,
    /// The model says that it will not, where the API has a place for that.
    pub is_refusal: bool,
    /// How long the client did not take what had come for it.
    pub write_stall: Duration,
    /// Of that, how long just before the last output.
    pub last_output_held: Duration,
    /// Silences of the replica.
    pub stalls: Vec<Stall>,
    /// Times that the engine itself reports.
    pub engine: Option<EngineTimes>,
    /// The gateway asked for usage in every event.
    pub has_continuous_usage: bool,
    /// What became of the usage event that the gateway asked for.
    pub usage_event: Option<UsageEvent>,
    /// Token counts from the engine.
    pub usage: Usage,
    /// Where the output count came from.
    pub usage_source: UsageSource,
    /// By choice; `None` for one that did not finish.
    pub finish_reasons: Vec<Option<Finish>>,
    /// A failure reported inside the answer.
    pub error: Option<InBandError>,
    /// The answer's own last event was seen, or the body was whole.
    pub is_terminal: bool,
    /// Why the observer does not know everything.
    pub lost: Option<Lost>,
    /// The answer's `id`.
    pub response_id: Option<Box<str>>,
    /// The answer's `model`.
    pub response_model: Option<Box<str>>,
    /// The beginning of its text, if the text of this request is kept.
    pub text: Option<Excerpt>,
}

/// The bounds under which an answer's times and tokens are counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Scales {
    /// Of [`Observed::gaps`].
    pub gaps: Bounds,
    /// Of [`Observed::itl`].
    pub itl: Bounds,
    /// Of [`Observed::chunk_tokens`].
    pub chunk_tokens: Bounds,
}

impl Observed {
    /// Counts under these bounds, from nothing.
    pub fn measure_by(&mut self, scales: &Scales) {
        self.gaps = Gaps::with_bounds(scales.gaps.clone());
        self.itl = Gaps::with_bounds(scales.itl.clone());
        self.chunk_tokens = ChunkTokens::with_bounds(scales.chunk_tokens.clone());
    }

    /// Counts each event that did not tell its tokens as so many. Only where the count of the answer
    /// is an estimate: an exact one needs none.
    pub fn scale_estimate(&mut self, tokens_per_event: f64) {
        if self.usage_source == UsageSource::Estimated {
            let more = self.uncounted_events as f64 * (tokens_per_event - 1.0);
            self.estimated_tokens = (self.estimated_tokens as f64 + more).round().max(0.0) as u64;
        }
    }

    /// Tokens and events with output of a stream whose tokens the engine counted, without the token
    /// that ended it and had no text. `None`: of another answer.
    pub fn counted_events(&self) -> Option<(u64, u64)> {
        let is_exact = self.is_stream && self.usage_source == UsageSource::Exact;
        let output = self.usage.output.filter(|_| is_exact && self.output_events > 0)?;
        let in_events = self.tokens_in_events.saturating_add(self.uncounted_events);
        let textless = self.estimated_tokens.saturating_sub(in_events);
        Some((output.saturating_sub(textless), self.output_events))
    }
}

impl Default for Scales {
    fn default() -> Self {
        Self {
            gaps: Bounds::fixed(Gap::BOUNDS),
            itl: Bounds::fixed(Gap::BOUNDS),
            chunk_tokens: Bounds::fixed(TokenCount::BOUNDS),
        }
    }
}

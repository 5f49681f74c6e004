//! The observations of a response.

use super::chunk_timings::ChunkTimings;
use super::outcome::{UninspectedReason, UsageEventOutcome, UsageLayout, UsageSource};
use crate::record::Stall;
use bytes::Bytes;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::time::Duration;
use tokenweir_protocol::histogram::{
    BucketBounds, BucketLayout, ChunkTokensHistogram, ChunkTransit, ChunkTransitHistogram,
    FixedBucketHistogram, OutputGap, OutputGapHistogram, TokenCount,
};
use tokenweir_protocol::openai::{
    EngineTimes, FinishReason, InBandError, TextExcerpt, TextSample, Usage,
};

/// The findings of the observer about one response.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObservedResponse {
    /// Whether the media type is `text/event-stream`.
    pub is_stream: bool,
    /// Number of events of the stream, including the terminal event.
    pub events: u64,
    /// Number of comment lines, such as keep-alives.
    pub comments: u64,
    /// Events that contain generated output.
    pub output_events: u64,
    /// Sum of the tokens in output events that report their exact count.
    pub counted_event_tokens: u64,
    /// Number of output events that do not report a token count.
    pub uncounted_events: u64,
    /// Output tokens. Events count with the token count that they report, and others are estimated. While the
    /// response is open, an event without a count is one token; see
    /// [`ObservedResponse::scale_estimated_tokens`].
    pub estimated_tokens: u64,
    /// Inter-chunk latency: times between output events of the same choice, as the events arrived. Gaps during
    /// write stalls of the client are left out.
    pub inter_chunk_latency: OutputGapHistogram,
    /// Inter-token latency: each gap divided by the number of tokens that arrived at its end, with
    /// one value per token. Gaps with an unknown number of tokens are left out.
    pub inter_token_latency: OutputGapHistogram,
    /// Tokens per output event, for events that report their count.
    pub chunk_tokens: ChunkTokensHistogram,
    /// Times from reading bytes of a stream from the backend until they are written to the client. Writes that
    /// the client delayed, and responses over HTTP/2, are left out.
    pub chunk_transit: ChunkTransitHistogram,
    /// When chunks with output arrived.
    pub chunk_timings: ChunkTimings,
    /// The first texts of the response.
    pub text_sample: TextSample,
    /// Whether there was output other than reasoning.
    pub has_answer: bool,
    /// Whether the response contains a configured refusal phrase.
    pub has_refusal_phrase: bool,
    /// Whether the response is a model refusal by the refusal fields or events of its API.
    pub is_refusal: bool,
    /// Time in which the client did not read data that was ready for it.
    pub write_stall: Duration,
    /// The part of `write_stall` between the last two outputs.
    pub last_output_write_stall: Duration,
    /// The first stalls of the stream, in which the backend sent no output.
    pub stalls: Vec<Stall>,
    /// Queue, prefill and decode times that the engine wrote into the response.
    pub engine_times: Option<EngineTimes>,
    /// Whether only the gateway requested continuous usage.
    pub has_continuous_usage: bool,
    /// The result of handling the usage event that the gateway requested. `None`: no usage event was requested.
    pub usage_event: Option<UsageEventOutcome>,
    /// Where the server writes usage, as this stream shows. `None`: the stream does not show it.
    pub usage_layout: Option<UsageLayout>,
    /// The `system_fingerprint` of the usage event, with its quotes. Empty: the event had none.
    /// `None`: not known.
    pub fingerprint: Option<Bytes>,
    /// Token counts that the engine reported.
    pub usage: Usage,
    /// Accuracy of the output token count, set when the response has ended.
    pub usage_source: UsageSource,
    /// Finish reasons by choice index; `None` for a choice that did not finish.
    pub finish_reasons: Vec<Option<FinishReason>>,
    /// An error that the backend reported inside the response.
    pub error: Option<InBandError>,
    /// Whether the stream had its terminal event, or its body ended regularly and no part seems to be missing.
    pub is_complete: bool,
    /// Why the response could not be inspected in full. `None`: the whole response was inspected.
    pub uninspected_reason: Option<UninspectedReason>,
    /// The first `id` in the body.
    pub response_id: Option<Box<str>>,
    /// The first `model` in the body.
    pub response_model: Option<Box<str>>,
    /// Beginning of the text of the response. `None`: the text of this request is not retained.
    pub text_excerpt: Option<TextExcerpt>,
}

/// The observations in a record. They take memory only after the end of the response. Until then, the observer
/// holds them, and all values here are the defaults.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordedObservations(Option<Box<ObservedResponse>>);

#[cold]
fn no_observations() -> &'static ObservedResponse {
    static DEFAULTS: LazyLock<ObservedResponse> = LazyLock::new(ObservedResponse::default);
    &DEFAULTS
}

/// Bucket bounds of the histograms of a response.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseBuckets {
    /// Bounds of [`ObservedResponse::inter_chunk_latency`], in seconds.
    pub inter_chunk_latency: BucketBounds,
    /// Bounds of [`ObservedResponse::inter_token_latency`], in seconds.
    pub inter_token_latency: BucketBounds,
    /// Bounds of [`ObservedResponse::chunk_tokens`].
    pub chunk_tokens: BucketBounds,
    /// Bounds of [`ObservedResponse::chunk_transit`], in seconds.
    pub chunk_transit: BucketBounds,
}

impl Deref for RecordedObservations {
    type Target = ObservedResponse;

    #[inline] // each sink reads many values
    fn deref(&self) -> &ObservedResponse {
        self.0.as_deref().unwrap_or_else(|| no_observations())
    }
}

impl DerefMut for RecordedObservations {
    fn deref_mut(&mut self) -> &mut ObservedResponse {
        self.0.get_or_insert_default()
    }
}

impl From<Box<ObservedResponse>> for RecordedObservations {
    fn from(observed: Box<ObservedResponse>) -> Self {
        Self(Some(observed))
    }
}

impl ObservedResponse {
    /// Sets the bucket bounds, and resets the histograms.
    pub fn set_buckets(&mut self, buckets: &ResponseBuckets) {
        self.inter_chunk_latency = FixedBucketHistogram::with_bounds(&buckets.inter_chunk_latency);
        self.inter_token_latency = FixedBucketHistogram::with_bounds(&buckets.inter_token_latency);
        self.chunk_tokens = FixedBucketHistogram::with_bounds(&buckets.chunk_tokens);
        self.chunk_transit = FixedBucketHistogram::with_bounds(&buckets.chunk_transit);
    }

    /// The times between tokens or, if the numbers of tokens are unknown, between events with output.
    pub fn token_gaps(&self) -> &OutputGapHistogram {
        if self.inter_token_latency.count() > 0 {
            &self.inter_token_latency
        } else {
            &self.inter_chunk_latency
        }
    }

    /// The accuracy of the output token count.
    pub fn token_count_source(&self) -> UsageSource {
        let Usage { input, output, .. } = self.usage;
        // After a failure, the count is not final.
        let is_final = self.is_complete && self.error.is_none();
        match self.output_events {
            _ if output.is_some() && is_final => UsageSource::Exact,
            _ if output.is_some() => UsageSource::Continuous,
            1.. if self.uncounted_events == 0 => UsageSource::Continuous,
            1.. => UsageSource::Estimated,
            // Embeddings and similar responses have no output to count.
            0 if input.is_some() && is_final => UsageSource::Exact,
            0 => UsageSource::Missing,
        }
    }

    /// Counts each output event without a token count as `tokens_per_event` tokens. Has no effect on an exact
    /// token count.
    pub fn scale_estimated_tokens(&mut self, tokens_per_event: f64) {
        if self.usage_source == UsageSource::Estimated {
            let additional = self.uncounted_events as f64 * (tokens_per_event - 1.0);
            let tokens = self.estimated_tokens as f64 + additional;
            self.estimated_tokens = tokens.round().max(0.0) as u64;
        }
    }

    /// Number of output tokens and number of output events of a stream. The number of tokens is the engine's
    /// exact count, without a final token that had no text. `None`: the response is no stream, has no output
    /// event, or lacks an exact count.
    pub fn exact_tokens_and_output_events(&self) -> Option<(u64, u64)> {
        let is_exact = self.is_stream && self.usage_source == UsageSource::Exact;
        if !is_exact || self.output_events == 0 {
            return None;
        }
        let output = self.usage.output?;
        let tokens_in_events = self
            .counted_event_tokens
            .saturating_add(self.uncounted_events);
        let tokens_without_text = self.estimated_tokens.saturating_sub(tokens_in_events);
        Some((
            output.saturating_sub(tokens_without_text),
            self.output_events,
        ))
    }
}

impl Default for ResponseBuckets {
    fn default() -> Self {
        Self {
            inter_chunk_latency: BucketBounds::from_static(OutputGap::BOUNDS),
            inter_token_latency: BucketBounds::from_static(OutputGap::BOUNDS),
            chunk_tokens: BucketBounds::from_static(TokenCount::BOUNDS),
            chunk_transit: BucketBounds::from_static(ChunkTransit::BOUNDS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RequestRecord;

    #[test]
    fn open_responses_take_no_memory() {
        let mut observations = RecordedObservations::default();
        assert_eq!(*observations, ObservedResponse::default());
        assert!(observations.0.is_none() && size_of::<RequestRecord>() < 1_400);
        observations.events = 2;
        assert_eq!(observations.events, 2);
    }
}

//! The events of spans: moments of the request, retries, stalls, and the times of chunks.

use super::attributes::{SpanAttributes, attributes, integers, reals, text, texts};
use super::conventions::{SpanConventions, ViewerProfile};
use super::inference::{add_notes, is_cancelled};
use super::record_values::{attempt_failure, to_wall_clock};
use opentelemetry::trace::Event;
use std::time::Instant;
use tokenweir_request::record::RequestRecord;

/// Maximum number of candidates in the span event of a routing decision.
const MAX_RECORDED_CANDIDATES: usize = 5;
/// The name of the first-token event in `OpenInference`.
const FIRST_TOKEN_EVENT_NAME: &str = "First Token Stream Event";

struct EventList<'a> {
    record: &'a RequestRecord,
    events: Vec<Event>,
}

/// Returns the events of the inference span of a request, ordered by time.
pub(super) fn of_inference(record: &RequestRecord, conventions: &SpanConventions) -> Vec<Event> {
    let mut list = EventList::new(record);
    list.add_decision();
    list.add_retries();
    list.add_moments();
    list.add_stalls();
    list.add_chunk_timings();
    if conventions.profiles.contains(&ViewerProfile::OpenInference) {
        list.add_moment(FIRST_TOKEN_EVENT_NAME, record.timings.first_output);
    }
    list.events.sort_by_key(|event| event.timestamp);
    list.events
}

/// Returns the events that options add to the span of an attempt.
pub(super) fn of_attempt(record: &RequestRecord, span_id: u64) -> Vec<Event> {
    let mut list = EventList::new(record);
    for event in record
        .notes
        .iter()
        .flat_map(|note| note.attempt_events(span_id))
    {
        let mut attributes = SpanAttributes::default();
        add_notes(&mut attributes, event.attributes);
        list.add(event.name, event.at, attributes);
    }
    list.events
}

impl<'a> EventList<'a> {
    fn new(record: &'a RequestRecord) -> Self {
        Self {
            record,
            events: Vec::new(),
        }
    }

    fn add(&mut self, name: &'static str, at: Instant, attributes: SpanAttributes) {
        let at = to_wall_clock(self.record, at);
        self.events
            .push(Event::new(name, at, attributes.into_vec(), 0));
    }

    /// Adds an event without attributes, unless the request did not reach the moment.
    fn add_moment(&mut self, name: &'static str, at: Option<Instant>) {
        if let Some(at) = at {
            self.add(name, at, SpanAttributes::default());
        }
    }

    fn add_moments(&mut self) {
        let timings = &self.record.timings;
        self.add_moment("tokenweir.queued", timings.queued);
        self.add_moment("tokenweir.dequeued", timings.dequeued);
        self.add_moment("tokenweir.upstream_headers", timings.headers);
        self.add_moment("gen_ai.first_chunk", timings.first_output);
        if is_cancelled(self.record) {
            self.add_moment("tokenweir.client_disconnect", timings.ended);
        }
    }

    /// Adds the event of the routing decision. It lists the backend and the predicted TTFT of the candidates with
    /// the lowest costs, lowest first.
    fn add_decision(&mut self) {
        let Some((decision, at)) = self
            .record
            .decision
            .as_ref()
            .zip(self.record.timings.routed)
        else {
            return;
        };
        let mut candidates = decision.ranked_candidates();
        candidates.truncate(MAX_RECORDED_CANDIDATES);
        let backends = candidates
            .iter()
            .map(|candidate| candidate.backend.as_str());
        let ttfts = candidates.iter().map(|candidate| candidate.ttft);
        let attributes = attributes! {
            "tokenweir.route.scores.backend" => texts(backends),
            "tokenweir.route.scores.ttft" => reals(ttfts),
        };
        self.add("tokenweir.route_decision", at, attributes);
    }

    /// Adds one event for each attempt after which the request was retried. Options report their own retries.
    fn add_retries(&mut self) {
        let record = self.record;
        for pair in record.attempts.windows(2) {
            let [attempt, next] = pair else { continue };
            let mut notes = record.notes.iter();
            if notes.any(|note| !note.attempt_events(next.span_id).is_empty()) {
                continue;
            }
            let attributes = attributes! {
                "tokenweir.backend.id" => text(attempt.backend.as_str()),
                "error.type" => attempt_failure(attempt),
            };
            let at = attempt.ended.unwrap_or(attempt.started);
            self.add("tokenweir.retry", at, attributes);
        }
    }

    /// Adds up to two events per stall of the stream: the detection of the stall, and its end if the stall ended.
    fn add_stalls(&mut self) {
        for stall in &self.record.observed.stalls {
            let condition = &stall.condition;
            let since_output = |at: Instant| at.saturating_duration_since(stall.last_output_at);
            let detected = attributes! {
                "tokenweir.stall.last_output_age" => since_output(stall.detected_at),
                "tokenweir.backend.kv_usage" => condition.kv_usage,
                "tokenweir.backend.running" => condition.running,
                "tokenweir.backend.waiting" => condition.waiting,
                "tokenweir.backend.preemptions" => condition.preemptions,
            };
            self.add("tokenweir.stall", stall.detected_at, detected);
            if let Some(at) = stall.ended_at {
                let ended = attributes! { "tokenweir.stall.duration" => since_output(at) };
                self.add("tokenweir.stall_end", at, ended);
            }
        }
    }

    /// Adds the event with the times of the chunks of a slow or broken stream, at the end of the stream. Times are
    /// in milliseconds from the request head.
    fn add_chunk_timings(&mut self) {
        let Some(chunks) = self.record.examined_chunk_timings() else {
            return;
        };
        let gaps = || chunks.longest_gaps();
        let attributes = attributes! {
            "tokenweir.chunks.count" => chunks.chunks(),
            "tokenweir.chunks.stride" => chunks.stride(),
            "tokenweir.chunks.samples_ms" => integers(chunks.samples_ms().iter().copied()),
            "tokenweir.chunks.gaps_ms" => integers(gaps().map(|gap| gap.gap_ms)),
            "tokenweir.chunks.gap_ends_ms" => integers(gaps().map(|gap| gap.ended_ms)),
        };
        let ended = self.record.timings.end();
        self.add("tokenweir.chunk_timings", ended, attributes);
    }
}

//! Computes the values that a record must have from the events of the exchange, and reads the values that it
//! has. The rules are those in the documentation of the record and in `tests/wire/README.md`.

use super::exchange_case::{Case, Close};
use super::expected_stream::Meaning;
use tokenweir_protocol::openai::{FinishReason, Usage};
use tokenweir_request::record::{RequestRecord, UninspectedReason, UsageEventOutcome};

/// The values of a record that the test compares.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct RecordFields {
    pub outcome: &'static str,
    pub ending: &'static str,
    pub finish_reasons: Vec<Option<&'static str>>,
    pub usage: Usage,
    pub usage_source: &'static str,
    pub output_tokens: Option<u64>,
    pub usage_event: Option<&'static str>,
    pub error: Option<[Option<String>; 2]>,
    pub is_malformed: bool,
    pub events: u64,
    pub comments: u64,
    pub output_events: u64,
    pub tokens_in_events: u64,
    pub uncounted_events: u64,
    /// Whether the record has the times of the first event, the first output, the first answer and the last
    /// event.
    pub marks: [bool; 4],
    pub status: Option<u16>,
    /// Whether the observer considered the response complete.
    pub is_whole: bool,
    pub is_backend_fault: bool,
}

impl RecordFields {
    /// Reads the values of a record that the gateway has written.
    pub(crate) fn from_record(record: &RequestRecord) -> Self {
        let observed = &record.observed;
        let timings = &record.timings;
        Self {
            outcome: record.outcome.as_str(),
            ending: record.ending(),
            finish_reasons: observed
                .finish_reasons
                .iter()
                .map(|reason| reason.map(FinishReason::as_str))
                .collect(),
            usage: observed.usage,
            usage_source: observed.usage_source.as_str(),
            output_tokens: record.output_tokens(),
            usage_event: observed.usage_event.map(UsageEventOutcome::as_str),
            error: observed.error.as_ref().map(|error| {
                [&error.code, &error.kind].map(|text| text.as_deref().map(Into::into))
            }),
            is_malformed: observed.uninspected_reason == Some(UninspectedReason::Malformed),
            events: observed.events,
            comments: observed.comments,
            output_events: observed.output_events,
            tokens_in_events: observed.counted_event_tokens,
            uncounted_events: observed.uncounted_events,
            marks: [
                timings.first_event.is_some(),
                timings.first_output.is_some(),
                timings.first_answer.is_some(),
                timings.terminal.is_some(),
            ],
            status: record.status,
            is_whole: observed.is_complete,
            is_backend_fault: record.shows_backend_fault(),
        }
    }

    /// Computes the values that the record of this exchange must have.
    pub(crate) fn expected(case: &Case) -> Self {
        let mut fields = Self {
            status: Some(case.status),
            ..Self::default()
        };
        if case.is_stream() {
            fields.add_events(case);
        } else {
            fields.add_document(case);
        }
        fields.judge(case);
        fields
    }

    /// Adds the values of a response that is no stream. The gateway parses such a response only when it is
    /// complete.
    fn add_document(&mut self, case: &Case) {
        self.usage_source = "missing";
        if case.close == Close::Whole {
            let is_all = case.arrived == case.stream.bytes.len();
            let is_json = case.content_type == "application/json";
            self.is_malformed = is_json && !is_all && case.has_known_format();
            let is_read = is_json && is_all;
            self.error = case.stream.events[0]
                .meaning
                .error
                .filter(|_| is_read)
                .map(|(code, kind)| [code, kind].map(|text| text.map(Into::into)));
            self.marks[3] = is_json && (is_all || !case.has_known_format());
            self.is_whole = !is_json || self.marks[3];
        }
    }

    fn add_events(&mut self, case: &Case) {
        let stream = &case.stream;
        let is_here = |at: &&usize| **at <= case.arrived;
        self.comments = stream.comments.iter().filter(is_here).count() as u64;
        self.usage_event = case.is_usage_injected.then_some("missing");
        let mut estimated = 0;
        let is_ended = case.close == Close::Whole;
        let arrived_events = stream
            .events
            .iter()
            .take_while(|event| event.has_arrived(case.arrived, is_ended));
        for Meaning {
            output,
            choices,
            finish,
            usage,
            error,
            ..
        } in arrived_events.clone().map(|event| &event.meaning)
        {
            self.events += 1;
            if self.finish_reasons.len() < *choices {
                self.finish_reasons.resize(*choices, None);
            }
            if let Some((choice, reason)) = finish {
                self.finish_reasons[*choice] = Some(reason);
            }
            self.add_usage(usage.unwrap_or_default());
            if let (None, Some((code, kind))) = (&self.error, error) {
                self.error = Some([code, kind].map(|text| text.map(Into::into)));
            }
            match output {
                Some(output) => {
                    self.output_events += 1;
                    self.tokens_in_events += output.tokens.unwrap_or(0);
                    self.uncounted_events += u64::from(output.tokens.is_none());
                    estimated += output.tokens.unwrap_or(1);
                    self.marks[2] |= output.is_answer;
                }
                None if matches!(finish, Some((_, "stop" | "tool_calls"))) => estimated += 1,
                None => {}
            }
        }
        for Meaning {
            is_usage_event,
            usage,
            is_malformed,
            is_last,
            ..
        } in arrived_events.map(|event| &event.meaning)
        {
            self.marks[3] |= is_last;
            self.is_malformed |= is_malformed;
            match self.usage_event {
                Some("missing") if *is_usage_event => self.usage_event = Some("stripped"),
                // The server put usage into another event than the usage event, so it may send usage even
                // without a request for it.
                Some("missing" | "stripped") if usage.is_some() && !is_usage_event => {
                    self.usage_event = Some("not_removed");
                }
                _ => {}
            }
        }
        self.marks[0] = self.events > 0;
        self.marks[1] = self.output_events > 0;
        let are_choices_ended = self.finish_reasons.iter().all(Option::is_some);
        let has_content = self.output_events > 0 || !self.finish_reasons.is_empty();
        // A stream of unknown format has no choices that could end.
        let has_end = self.marks[3]
            || (is_ended && (!case.has_known_format() || (are_choices_ended && has_content)));
        let has_answer = self.marks[1]
            || self.error.is_some()
            || self
                .finish_reasons
                .iter()
                .flatten()
                .any(|reason| *reason != "error");
        self.is_whole = has_end && (has_answer || !case.has_known_format());
        self.count(estimated);
    }

    /// Replaces each token count for which `later` has a value.
    fn add_usage(&mut self, later: Usage) {
        let Usage {
            input,
            output,
            cached,
            cache_created,
            reasoning,
        } = self.usage;
        self.usage = Usage {
            input: later.input.or(input),
            output: later.output.or(output),
            cached: later.cached.or(cached),
            cache_created: later.cache_created.or(cache_created),
            reasoning: later.reasoning.or(reasoning),
        };
    }

    /// Sets the number of output tokens and the source of this number. `estimated` is the number to use if
    /// only an estimate is possible.
    fn count(&mut self, estimated: u64) {
        // A token count is not final if an error follows it.
        let is_ended = self.is_whole && self.error.is_none();
        let is_all_told = self.uncounted_events == 0;
        (self.usage_source, self.output_tokens) = match (self.usage.output, self.output_events) {
            (Some(output), _) if is_ended => ("exact", Some(output)),
            (Some(output), _) => ("continuous", Some(output)),
            (None, 1..) if is_all_told => ("continuous", Some(self.tokens_in_events)),
            (None, 1..) => ("estimated", Some(estimated)),
            (None, 0) if self.usage.input.is_some() && is_ended => ("exact", None),
            (None, 0) => ("missing", None),
        };
    }

    /// Sets the outcome of the request. The first condition that holds decides.
    fn judge(&mut self, case: &Case) {
        let is_whole = self.is_whole;
        (self.outcome, self.ending) = match case.close {
            _ if (400..500).contains(&case.status) => ("client_error", "client_error"),
            _ if case.status >= 500 => ("upstream_error", "upstream_status"),
            _ if self.error.is_some() => ("stream_error", "inband_error"),
            Close::Broken => ("truncated", "truncated_cut"),
            Close::Whole if !is_whole => ("truncated", "truncated_clean"),
            // The last event came without an answer before it.
            Close::Left if !is_whole && self.marks[3] => ("truncated", "truncated_clean"),
            Close::Left if !is_whole => ("cancelled", "client_cancelled"),
            _ if self.finish_reasons.contains(&Some("abort")) => ("aborted", "upstream_abort"),
            Close::Left => ("ok", "ok_client_disconnected_after_end"),
            Close::Whole => ("ok", "ok"),
        };
        self.is_backend_fault = match self.ending {
            "inband_error" => !self.error.iter().any(|[code, _]| {
                code.as_ref()
                    .is_some_and(|code| code.len() == 3 && code.starts_with('4'))
            }),
            "truncated_cut" => !self.is_whole,
            ending => matches!(ending, "upstream_status" | "upstream_abort"),
        };
    }
}

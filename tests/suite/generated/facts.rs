//! What a record must say of an exchange, by what the exchange's events mean, and what it says.
//! The rules are those of the record's own documentation and of `tests/wire/README.md`.

use super::case::{Case, Close};
use super::story::{Counts, Kind, Meaning};
use tokenweir_core::openai::Finish;
use tokenweir_core::record::{Lost, RequestRecord, UsageEvent};

/// What is compared.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Facts {
    pub outcome: &'static str,
    pub ending: &'static str,
    pub finish_reasons: Vec<Option<&'static str>>,
    pub usage: Counts,
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
    /// The marks that are set: first event, first output, first answer, last event.
    pub marks: [bool; 4],
    pub status: Option<u16>,
}

impl Facts {
    /// What the record says.
    pub(crate) fn seen(record: &RequestRecord) -> Self {
        let observed = &record.observed;
        let timings = &record.timings;
        let usage = observed.usage;
        Self {
            outcome: record.outcome.as_str(),
            ending: record.ending(),
            finish_reasons: observed
                .finish_reasons
                .iter()
                .map(|reason| reason.map(Finish::as_str))
                .collect(),
            usage: Counts {
                input: usage.input,
                output: usage.output,
                cached: usage.cached,
                cache_created: usage.cache_created,
                reasoning: usage.reasoning,
            },
            usage_source: observed.usage_source.as_str(),
            output_tokens: record.output_tokens(),
            usage_event: observed.usage_event.map(UsageEvent::as_str),
            error: observed.error.as_ref().map(|error| {
                [&error.code, &error.kind].map(|text| text.as_deref().map(Into::into))
            }),
            is_malformed: observed.lost == Some(Lost::Malformed),
            events: observed.events,
            comments: observed.comments,
            output_events: observed.output_events,
            tokens_in_events: observed.tokens_in_events,
            uncounted_events: observed.uncounted_events,
            marks: [
                timings.first_event.is_some(),
                timings.first_output.is_some(),
                timings.first_answer.is_some(),
                timings.terminal.is_some(),
            ],
            status: record.status,
        }
    }

    /// What the record must say.
    pub(crate) fn expected(case: &Case) -> Self {
        let mut facts = Self { status: Some(case.status), ..Self::default() };
        if case.is_stream() {
            facts.hear_events(case);
        } else {
            facts.hear_document(case);
        }
        facts.judge(case);
        facts
    }

    /// A body that is no stream says what it says when it is whole.
    fn hear_document(&mut self, case: &Case) {
        self.usage_source = "missing";
        if case.close == Close::Whole {
            let is_all = case.arrived == case.story.bytes.len();
            let is_json = case.content_type == "application/json";
            self.is_malformed = is_json && !is_all;
            let is_read = is_json && is_all;
            self.error = case.story.events[0]
                .meaning
                .error
                .filter(|_| is_read)
                .map(|(code, kind)| [code, kind].map(|text| text.map(Into::into)));
            self.marks[3] = is_read;
        }
    }

    fn hear_events(&mut self, case: &Case) {
        let story = &case.story;
        let is_here = |at: &&usize| **at <= case.arrived;
        self.comments = story.comments.iter().filter(is_here).count() as u64;
        self.usage_event = case.is_usage_injected.then_some("missed");
        let mut estimated = 0;
        let heard = story.events.iter().take_while(|event| event.complete_at <= case.arrived);
        for Meaning { output, choices, finish, usage, error, .. } in
            heard.clone().map(|event| &event.meaning)
        {
            self.events += 1;
            if self.finish_reasons.len() < *choices {
                self.finish_reasons.resize(*choices, None);
            }
            if let Some((choice, reason)) = finish {
                self.finish_reasons[*choice] = Some(reason);
            }
            self.usage.update(usage.unwrap_or_default());
            if let (None, Some((code, kind))) = (&self.error, error) {
                self.error = Some([code, kind].map(|text| text.map(Into::into)));
            }
            match output {
                Some(output) => {
                    self.output_events += 1;
                    self.tokens_in_events += output.tokens.unwrap_or(0);
                    self.uncounted_events += u64::from(output.tokens.is_none());
                    estimated += output.tokens.unwrap_or(1);
                    self.marks[2] |= output.kind == Kind::Answer;
                }
                None if matches!(finish, Some((_, "stop" | "tool_calls"))) => estimated += 1,
                None => {}
            }
        }
        for Meaning { is_usage_event, usage, is_malformed, is_last, .. } in
            heard.map(|event| &event.meaning)
        {
            self.marks[3] |= is_last;
            self.is_malformed |= is_malformed;
            match self.usage_event {
                Some("missed") if *is_usage_event => self.usage_event = Some("stripped"),
                // In another event: the server tells usage with each, whoever asks.
                Some("missed") if usage.is_some() => {
                    self.usage_event = Some("forced");
                }
                _ => {}
            }
        }
        self.marks[0] = self.events > 0;
        self.marks[1] = self.output_events > 0;
        self.count(estimated);
    }

    /// How the output is counted, and how far that can be trusted.
    fn count(&mut self, estimated: u64) {
        // The last count before a failure is no final one.
        let is_ended = self.marks[3] && self.error.is_none();
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

    /// The first that holds.
    fn judge(&mut self, case: &Case) {
        let is_finished =
            self.finish_reasons.is_empty() || self.finish_reasons.iter().any(Option::is_some);
        let is_whole = self.marks[3] && is_finished;
        (self.outcome, self.ending) = match case.close {
            _ if (400..500).contains(&case.status) => ("client_error", "client_error"),
            _ if case.status >= 500 => ("upstream_error", "upstream_status"),
            _ if self.error.is_some() => ("stream_error", "inband_error"),
            Close::Broken => ("truncated", "truncated_cut"),
            Close::Whole if !is_whole => ("truncated", "truncated_clean"),
            Close::Left if !is_whole => ("cancelled", "client_cancelled"),
            _ if self.finish_reasons.contains(&Some("abort")) => ("aborted", "upstream_abort"),
            Close::Left => ("ok", "ok_client_left_after_end"),
            Close::Whole => ("ok", "ok"),
        };
    }
}

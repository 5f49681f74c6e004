//! Compares the content of a whole response with what its request asked for.

use super::super::{RequestRecord, UsageSource};
use tokenweir_protocol::openai::FinishReason;
use tokenweir_protocol::openai::prompt::PromptBytes;

/// Minimum share of damaged bytes in a text that is no answer.
const UNREADABLE_SHARE: f64 = 0.1;
/// Minimum share of damaged bytes in a text of which some characters are damaged.
const DAMAGED_SHARE: f64 = 0.02;
/// Minimum number of output events that can show that an engine's token count is too small.
const MIN_COUNTED_EVENTS: u64 = 8;
/// Maximum number of output events per token.
const MAX_EVENTS_PER_TOKEN: u64 = 4;
/// Maximum number of tokens per byte of the prompt, and maximum number of tokens of the chat template around
/// it.
const MAX_TOKENS_PER_BYTE: u64 = 2;
const MAX_TEMPLATE_TOKENS: u64 = 16_384;

/// The kind of answer to a request with tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolAnswer {
    /// The answer has a tool call.
    Call,
    /// The answer is a text.
    Text,
    /// The answer is a text that begins like a tool call.
    TextLikeCall,
}

impl RequestRecord {
    /// Whether so many bytes of a whole response are replacement or control characters that it is no answer.
    pub fn is_unreadable(&self) -> bool {
        let share = self.observed.text_sample.damaged_share();
        share.is_some_and(|share| share >= UNREADABLE_SHARE)
    }

    /// Whether the text has many replacement or control characters. `None`: no text.
    pub fn has_damaged_text(&self) -> Option<bool> {
        let share = self.observed.text_sample.damaged_share()?;
        Some(share >= DAMAGED_SHARE)
    }

    /// Whether the answer, by its first byte, is the JSON that the client asked for. `None`: the client did not
    /// ask for JSON, the engine did not end the response, or the gateway has not seen its text.
    pub fn is_requested_json(&self) -> Option<bool> {
        let is_ended = self.has_ended_response() && !self.is_tool_call();
        let start = self.observed.text_sample.answer_start()?;
        let is_json = matches!(
            start,
            b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'
        );
        (is_ended && self.options.parameters.output == Some("json")).then_some(is_json)
    }

    /// The kind of answer to a request with tools. `None`: the request has no tools, or the model did not end
    /// its answer.
    pub fn tool_answer(&self) -> Option<ToolAnswer> {
        let is_ended = self.has_ended_response() && !self.is_cut() && self.observed.has_answer;
        if !self.options.has_tools || !is_ended {
            return None;
        }
        Some(if self.is_tool_call() {
            ToolAnswer::Call
        } else if matches!(
            self.observed.text_sample.answer_start(),
            Some(b'<' | b'{' | b'[')
        ) {
            ToolAnswer::TextLikeCall
        } else {
            ToolAnswer::Text
        })
    }

    /// Whether the model ended its response after reasoning, without an answer.
    pub fn is_reasoning_alone(&self) -> bool {
        let has_reasoning = self.timings.first_reasoning.is_some()
            || self
                .observed
                .usage
                .reasoning
                .is_some_and(|tokens| tokens > 0);
        self.is_empty_response() && !self.is_cut() && has_reasoning
    }

    /// Whether the token counts of the engine contradict its response, such as 0 tokens for a text.
    pub fn has_wrong_usage(&self) -> bool {
        let observed = &*self.observed;
        if observed.usage_source != UsageSource::Exact || !self.has_ended_response() {
            return false;
        }
        let output = observed.usage.output.unwrap_or(u64::MAX);
        let has_few_tokens = observed.output_events >= MIN_COUNTED_EVENTS
            && output < observed.output_events / MAX_EVENTS_PER_TOKEN;
        let has_none = output == 0 && observed.has_answer;
        has_few_tokens || has_none || self.has_wrong_input()
    }

    /// Whether the engine reports no prompt tokens, or more than the prompt can have.
    fn has_wrong_input(&self) -> bool {
        let PromptBytes { parts, text, media } = self.options.prompt_bytes;
        let Some(input) = self.observed.usage.input else {
            return false;
        };
        let is_whole_prompt = media == 0
            && !self.options.has_media
            && self.options.parameters.previous_response.is_none();
        let most = MAX_TOKENS_PER_BYTE * text + MAX_TEMPLATE_TOKENS;
        parts > 0 && (input == 0 || is_whole_prompt && input > most)
    }

    /// Whether a choice ended at its token limit.
    pub(super) fn is_cut(&self) -> bool {
        let reasons = &self.observed.finish_reasons;
        reasons.contains(&Some(FinishReason::Length))
    }

    fn is_tool_call(&self) -> bool {
        let reasons = &self.observed.finish_reasons;
        reasons.contains(&Some(FinishReason::ToolCalls)) || self.timings.first_tool_call.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fixtures::streamed;
    use tokenweir_protocol::openai::{Api, ResponseReader};

    /// The record of a whole stream with these texts.
    fn answered(texts: &[&str]) -> RequestRecord {
        let mut reader = ResponseReader::new(Api::Chat);
        for text in texts {
            let event = format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#);
            reader.data(event.as_bytes());
            reader.finish_event("");
        }
        let mut record = streamed();
        record.observed.has_answer = true;
        record.observed.text_sample = reader.text_sample();
        record
    }

    #[test]
    fn a_text_of_replacement_characters_is_unreadable() {
        assert!(answered(&["\u{FFFD}", "\u{FFFD}"]).is_unreadable());
        assert!(answered(&[r"\ufffd"; 40]).is_unreadable());
        assert!(!answered(&["a", " plain text"]).is_unreadable());
        let umlauts = answered(&["ein f\u{FFFD}r alle Mal gesagtes Wort in diesem langen Satz"]);
        assert_eq!(umlauts.has_damaged_text(), Some(true));
        assert!(!umlauts.is_unreadable());
        assert_eq!(answered(&[]).has_damaged_text(), None);
    }

    #[test]
    fn only_requested_json_is_judged() {
        let of = |output, texts: &[&str]| {
            let mut record = answered(texts);
            record.options.parameters.output = output;
            record.is_requested_json()
        };
        assert_eq!(of(Some("json"), &[r"\n", r#"{\"a\":1}"#]), Some(true));
        assert_eq!(of(Some("json"), &["```json"]), Some(false));
        assert_eq!(of(Some("json"), &["Sure, here"]), Some(false));
        assert_eq!(of(None, &["Sure, here"]), None);
        assert_eq!(of(Some("json"), &[]), None);
    }

    #[test]
    fn answers_to_tools_are_calls_or_texts() {
        let of = |text: &str, finish| {
            let mut record = answered(&[text]);
            record.options.has_tools = true;
            record.observed.finish_reasons = vec![Some(finish)];
            record.tool_answer()
        };
        assert_eq!(of("", FinishReason::ToolCalls), Some(ToolAnswer::Call));
        assert_eq!(of("It is", FinishReason::Stop), Some(ToolAnswer::Text));
        for text in ["<tool_call>", "[TOOL_CALLS]", r#"{\"name\""#] {
            assert_eq!(of(text, FinishReason::Stop), Some(ToolAnswer::TextLikeCall));
        }
        assert_eq!(of("It is", FinishReason::Length), None);
        assert_eq!(answered(&["It is"]).tool_answer(), None);
    }

    #[test]
    fn counts_that_contradict_the_answer_are_wrong() {
        let of = |input, output| {
            let mut record = answered(&["some text"]);
            record.options.prompt_bytes.parts = 40;
            record.options.prompt_bytes.text = 40;
            record.observed.usage.input = Some(input);
            record.observed.usage.output = Some(output);
            record.has_wrong_usage()
        };
        assert!(!of(12, 16));
        assert!(of(12, 0) && of(12, 3) && of(0, 16) && of(90_000, 16));
        assert!(!of(12, 90), "several tokens in an event");
    }
}

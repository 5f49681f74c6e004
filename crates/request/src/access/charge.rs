//! The tokens for which a tenant and a key are charged after a request: the usage that the engine reported or,
//! without a report, an estimate.

use crate::record::{Outcome, RequestRecord};
use tokenweir_protocol::openai::{Api, PromptBytes, TOKENS_PER_BYTE, TOKENS_PER_MEDIA_BYTE};
use tokenweir_routing::resilience::FailureKind;

/// The status of an open WebSocket.
const STATUS_SWITCHING_PROTOCOLS: u16 = 101;

/// Tokens charged to a tenant and a key for one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenCharge {
    /// Prompt tokens, including cached ones.
    pub input: u64,
    /// Output tokens, including reasoning.
    pub output: u64,
}

impl TokenCharge {
    /// The charge of a request that has ended.
    ///
    /// vLLM reports the prompt tokens at the end of a response. If the client disconnects earlier, or its own
    /// timeout expires, the estimated prompt tokens are charged, so that an early disconnect is not free. A
    /// request that failed because of its backend is charged for the reported tokens and the output that
    /// arrived.
    pub fn from_record(record: &RequestRecord) -> Self {
        if record.status == Some(STATUS_SWITCHING_PROTOCOLS) {
            return Self::of_websocket(record);
        }
        let observed = &*record.observed;
        let last_failure = record.attempts.last().and_then(|attempt| attempt.failure);
        let is_ok_or_ended_by_client = matches!(record.outcome, Outcome::Ok | Outcome::Cancelled)
            || [FailureKind::ClientTimeout, FailureKind::TotalTimeout]
                .iter()
                .any(|kind| last_failure == Some(kind.as_str()));
        let is_charged =
            is_ok_or_ended_by_client && computes_prompt(record) && !record.attempts.is_empty();
        let input = match observed.usage.input {
            None if is_charged => estimated_tokens(record),
            input => input,
        };
        let is_whole = is_charged && !observed.is_stream && record.api.is_some_and(Api::generates);
        let estimated_output = if is_whole {
            (record.bytes_out as f64 * TOKENS_PER_BYTE) as u64
        } else {
            0
        };
        Self {
            input: input.unwrap_or(0),
            output: record.output_tokens().unwrap_or(estimated_output),
        }
    }

    /// The charge of a WebSocket. The gateway does not read its bytes, and counts them as media because most of
    /// them are speech.
    fn of_websocket(record: &RequestRecord) -> Self {
        let tokens = |bytes: u64| (bytes as f64 * TOKENS_PER_MEDIA_BYTE).ceil() as u64;
        Self {
            input: tokens(record.bytes_in),
            output: tokens(record.bytes_out),
        }
    }

    /// Sum of the prompt and output tokens.
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// Whether an engine computes the prompt of the request. Requests that only tokenize a text or render a
/// template use no GPU time, and a request about a stored response has no prompt.
fn computes_prompt(record: &RequestRecord) -> bool {
    let route = record.route.unwrap_or_default();
    let is_template = route.ends_with("/render") || route.ends_with("/derender");
    let is_tokenizer = route.ends_with("tokenize") || route.ends_with("/count_tokens");
    record.api.is_some_and(|api| api != Api::Http) && !is_template && !is_tokenizer
}

/// The estimated prompt tokens of a request. Routing predicted the tokens of the prompt parts. The estimate
/// scales this prediction to all text that the engine may put into the prompt, and adds the tokens of media.
/// `None`: no backend was selected.
fn estimated_tokens(record: &RequestRecord) -> Option<u64> {
    let predicted = record.selected_candidate()?.candidate.prompt;
    let mut bytes = record.options.prompt_bytes;
    if bytes == PromptBytes::default() && predicted <= 0.0 {
        // The gateway has not read this upload, so all of it counts as media.
        bytes.media = record.bytes_in;
    }
    Some(tokens_of_body(predicted, bytes))
}

/// The estimated tokens of all text and media of a request body. `predicted`: the tokens that routing
/// predicted for the prompt parts of the body.
fn tokens_of_body(predicted: f64, PromptBytes { parts, text, media }: PromptBytes) -> u64 {
    let media_in_parts = media.min(parts);
    let predicted = (predicted - media_in_parts as f64 * TOKENS_PER_MEDIA_BYTE).max(0.0);
    let parts = parts - media_in_parts;
    let text_tokens = if text == 0 && media == 0 {
        predicted
    } else if parts == 0 || predicted <= 0.0 {
        text as f64 * TOKENS_PER_BYTE
    } else {
        predicted * text as f64 / parts as f64
    };
    (text_tokens + media as f64 * TOKENS_PER_MEDIA_BYTE).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{UsageSource, fixtures};
    use tokenweir_protocol::openai::Usage;

    #[test]
    fn reported_usage_is_charged() {
        let record = fixtures::streamed();
        let usage = record.observed.usage;
        let charge = TokenCharge::from_record(&record);
        assert_eq!(Some(charge.input), usage.input);
        assert_eq!(Some(charge.output), usage.output);
        assert_eq!(charge.total(), charge.input + charge.output);
        assert!(charge.input > 0 && charge.output > 0);
    }

    /// The gateway has counted 7 tokens of output.
    #[test]
    fn unreported_prompts_are_charged_if_the_client_left() {
        use UsageSource::{Estimated, Missing};
        let fixture = fixtures::streamed();
        let predicted = fixture
            .selected_candidate()
            .unwrap()
            .candidate
            .prompt
            .round() as u64;
        for (outcome, failure, source, [input, output]) in [
            (Outcome::Cancelled, None, Estimated, [predicted, 7]),
            (
                Outcome::Timeout,
                Some(FailureKind::SlowOutput),
                Missing,
                [0, 0],
            ),
            (
                Outcome::Timeout,
                Some(FailureKind::ClientTimeout),
                Missing,
                [predicted, 0],
            ),
            (Outcome::Truncated, None, Estimated, [0, 7]),
            (Outcome::UpstreamError, None, Missing, [0, 0]),
        ] {
            let mut record = RequestRecord {
                outcome,
                ..fixtures::streamed()
            };
            record.observed.usage.input = None;
            record.observed.usage_source = source;
            record.observed.estimated_tokens = 7;
            record.attempts[0].failure = failure.map(FailureKind::as_str);
            let charge = TokenCharge::from_record(&record);
            assert_eq!(
                charge,
                TokenCharge { input, output },
                "{outcome:?} {failure:?}"
            );
            record.attempts.clear();
            record.observed.estimated_tokens = 0;
            let charge = TokenCharge::from_record(&record);
            assert_eq!(
                charge,
                TokenCharge::default(),
                "no backend received it: {outcome:?}"
            );
        }
    }

    #[test]
    fn cancelled_requests_pay_for_text_and_media() {
        let mut record = fixtures::streamed();
        let predicted = record.selected_candidate().unwrap().candidate.prompt;
        record.outcome = Outcome::Cancelled;
        record.observed.usage.input = None;
        record.observed.usage_source = UsageSource::Missing;
        let mut charged = |api, route, [parts, text, media]: [u64; 3]| {
            (record.api, record.route) = (Some(api), Some(route));
            record.options.prompt_bytes = PromptBytes { parts, text, media };
            TokenCharge::from_record(&record).input
        };
        let doubled = (predicted * 2.0).round() as u64;
        for route in [
            "/v1/embeddings",
            "/pooling",
            "/score",
            "/v1/chat/completions/batch",
        ] {
            assert_eq!(
                charged(Api::Other, route, [1_000, 2_000, 0]),
                doubled,
                "{route}"
            );
        }
        assert_eq!(
            charged(Api::Chat, "/v1/chat/completions", [0, 4_000, 0]),
            1_000
        );
        assert_eq!(
            charged(Api::Audio, "/v1/audio/transcriptions", [0, 0, 1 << 20]),
            1_024
        );
        let (text, media) = (1_024, (1 << 20) - 1_024);
        let image = PromptBytes {
            parts: text + media,
            text,
            media,
        };
        // The prediction of routing includes the media: 1,023 tokens for the media and 50 for the text.
        let image = tokens_of_body(1_073.0, image);
        assert!((1_023..1_100).contains(&image), "{image}");
        for route in [
            "/tokenize",
            "/v1/messages/count_tokens",
            "/v1/completions/render",
        ] {
            assert_eq!(charged(Api::Other, route, [1_000, 1_000, 0]), 0, "{route}");
        }
        assert_eq!(
            charged(Api::Http, "/v1/responses/{response_id}", [1_000, 1_000, 0]),
            0
        );
    }

    #[test]
    fn bytes_of_a_websocket_are_charged_as_media() {
        let mut record = fixtures::streamed();
        record.observed.usage = Usage::default();
        record.observed.usage_source = UsageSource::Missing;
        record.bytes_in = 64 << 10;
        record.bytes_out = 4 << 10;
        record.api = Some(Api::Http);
        record.status = Some(101);
        record.outcome = Outcome::Shutdown;
        let expected = TokenCharge {
            input: 64,
            output: 4,
        };
        assert_eq!(TokenCharge::from_record(&record), expected);
    }

    #[test]
    fn uncounted_whole_responses_are_charged_by_bytes() {
        let mut record = fixtures::streamed();
        record.observed.is_stream = false;
        record.observed.usage = Usage::default();
        record.observed.usage_source = UsageSource::Missing;
        record.observed.output_events = 0;
        record.bytes_out = 4_000;
        let charge = TokenCharge::from_record(&record);
        assert!(charge.input > 0);
        assert_eq!(charge.output, 1_000);
        record.outcome = Outcome::UpstreamError;
        assert_eq!(TokenCharge::from_record(&record), TokenCharge::default());
    }
}

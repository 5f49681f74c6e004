//! Redacts the prompt and the response of a request with the built-in patterns before they are written or
//! sent, and truncates them.

use super::patterns::RedactionKind;
use super::redact::redact;
use serde::Serialize;
use tokenweir_protocol::openai::TextExcerpt;
use tokenweir_protocol::trace_context::TraceContext;
use tokenweir_request::record::RequestRecord;

/// How prompts and responses are redacted and truncated.
#[derive(Debug, Clone)]
pub struct RedactionSettings {
    /// Maximum number of bytes of each prompt and each response that are written.
    pub max_bytes: usize,
    /// Kinds of private data that the built-in patterns redact.
    pub kinds: Vec<RedactionKind>,
}

/// Number of bytes of a text that are retained and redacted beyond the limit of written bytes (`max_bytes`).
/// A secret that crosses `max_bytes` is thus complete and recognized.
pub const REDACTION_MARGIN_BYTES: usize = 512;

/// The prompt and the response of one request in the queue of a worker thread. They are not
/// redacted yet.
pub struct PayloadJob {
    header: PayloadHeader,
    prompt: TextExcerpt,
    answer: TextExcerpt,
}

/// The fields of a payload log line or a quality sample that identify the request.
#[derive(Debug, Serialize)]
struct PayloadHeader {
    ts: String,
    request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    model: String,
}

/// The redacted and truncated prompt and response of one request: one line of the payload log, with
/// the fields in this order.
#[derive(Debug, Serialize)]
pub struct RedactedPayload<'a> {
    #[serde(flatten)]
    header: &'a PayloadHeader,
    prompt: String,
    /// The text of the response.
    answer: String,
    /// Whether a part of the prompt is missing at its end.
    prompt_cut: bool,
    /// Whether a part of the response is missing at its end.
    answer_cut: bool,
    /// Number of passages that were replaced because they are private data.
    redacted: u64,
}

impl PayloadJob {
    /// Takes the response text from the record of a finished request, and `prompt` as its prompt.
    pub fn from_record(record: &RequestRecord, prompt: TextExcerpt) -> Self {
        let header = PayloadHeader {
            ts: humantime::format_rfc3339_millis(record.started).to_string(),
            request_id: record.request_id.as_str().to_owned(),
            trace_id: record.trace.as_ref().map(TraceContext::id_text),
            model: record.model.known_name().to_owned(),
        };
        let answer = record.observed.text_excerpt.clone().unwrap_or_default();
        Self {
            header,
            prompt,
            answer,
        }
    }
}

impl RedactionSettings {
    /// Redacts and truncates the prompt and the response of one request.
    pub fn redact_texts<'a>(&self, job: &'a PayloadJob) -> RedactedPayload<'a> {
        let Self { max_bytes, kinds } = self;
        let redacted = |text: &TextExcerpt| {
            let (mut redacted, count) = redact(&String::from_utf8_lossy(text.bytes()), kinds);
            let is_cut = truncate_text(&mut redacted, text.is_cut(), *max_bytes);
            (redacted, is_cut, count)
        };
        let (prompt, prompt_cut, prompt_count) = redacted(&job.prompt);
        let (answer, answer_cut, answer_count) = redacted(&job.answer);
        let redacted = prompt_count + answer_count;
        RedactedPayload {
            header: &job.header,
            prompt,
            answer,
            prompt_cut,
            answer_cut,
            redacted,
        }
    }
}

impl RedactedPayload<'_> {
    /// Returns the name of the model of the request.
    pub fn model(&self) -> &str {
        &self.header.model
    }
}

/// Truncates `text` to `max_bytes`. If the text was cut before the redaction (`was_cut`), its last
/// [`REDACTION_MARGIN_BYTES`] are removed, because they may contain a part of a secret. Returns
/// whether a part of the original text is missing.
pub(super) fn truncate_text(text: &mut String, was_cut: bool, max_bytes: usize) -> bool {
    let margin = if was_cut { REDACTION_MARGIN_BYTES } else { 0 };
    let safe_length = text.len().saturating_sub(margin);
    let end = text.floor_char_boundary(safe_length.min(max_bytes));
    let is_cut = was_cut || end < text.len();
    text.truncate(end);
    is_cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_text_has_no_partial_secret() {
        // Each secret is longer than its placeholder, so redaction moves the end of the retained text
        // towards the start.
        let mail = format!("{}@example.com ", "m".repeat(100));
        let prompt = format!("{}{}", mail.repeat(5), "sk-abcdefghijklmnop1234567890");
        for max_bytes in 500..600 {
            let max_bytes = max_bytes - REDACTION_MARGIN_BYTES.min(max_bytes - 1);
            let mut excerpt = TextExcerpt::new(max_bytes + REDACTION_MARGIN_BYTES);
            excerpt.push(prompt.as_bytes());
            let text = String::from_utf8_lossy(excerpt.bytes());
            let (mut redacted, _) = redact(&text, RedactionKind::ALL.as_slice());
            truncate_text(&mut redacted, true, 10_000);
            assert!(
                !redacted.contains("mmm") && !redacted.contains("sk-"),
                "{redacted}"
            );
        }
    }
}

//! Redacts the prompt and the response of a request with the built-in patterns before they are written or
//! sent, and truncates them.

use super::redact::redact;
use super::settings::{PayloadLogSettings, REDACTION_MARGIN_BYTES};
use serde::Serialize;
use tokenweir_protocol::openai::TextExcerpt;

/// Redacts the prompts and responses of requests.
pub(in crate::telemetry) struct PayloadRedactor(PayloadLogSettings);

/// The redacted and truncated prompt and response of one request.
#[derive(Debug, Serialize)]
pub(in crate::telemetry) struct RedactedPayload {
    prompt: String,
    /// The text of the response.
    answer: String,
    /// Whether a part of the prompt is missing at its end.
    prompt_cut: bool,
    /// Whether a part of the response is missing at its end.
    answer_cut: bool,
    /// Number of passages that were replaced.
    redacted: u64,
}

impl PayloadRedactor {
    /// Creates a redactor with the redaction settings of the payload log. Quality monitoring uses
    /// these settings even if the payload log is disabled.
    pub(in crate::telemetry) fn new(settings: &PayloadLogSettings) -> Self {
        Self(settings.clone())
    }

    /// Redacts and truncates the texts of one request.
    pub(in crate::telemetry) fn redact_texts(
        &self,
        prompt: &TextExcerpt,
        answer: &TextExcerpt,
    ) -> RedactedPayload {
        let PayloadLogSettings { max_bytes, redact: kinds, .. } = &self.0;
        let redacted = |text: &TextExcerpt| {
            let (mut redacted, count) = redact(&String::from_utf8_lossy(text.bytes()), kinds);
            let is_cut = truncate_text(&mut redacted, text.is_cut(), *max_bytes);
            (redacted, is_cut, count)
        };
        let (prompt, prompt_cut, prompt_count) = redacted(prompt);
        let (answer, answer_cut, answer_count) = redacted(answer);
        let redacted = prompt_count + answer_count;
        RedactedPayload { prompt, answer, prompt_cut, answer_cut, redacted }
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

//! Redacts the texts of a request before they are written or sent: first with the built-in
//! patterns, then with the configured command or server; then truncates them.
//!
//! If the command or the server fails, the texts are discarded and never written or sent.

use super::command_redactor::CommandRedactor;
use super::error::PayloadSinkStartError;
use super::http_redactor::HttpRedactor;
use super::redact::redact;
use super::settings::{PayloadLogSettings, REDACTION_MARGIN_BYTES};
use super::texts::PayloadTexts;
use serde::Serialize;
use std::time::Duration;
use tokenweir_core::openai::TextExcerpt;

/// Redacts the texts of requests, one request after the other. A call blocks while it waits for the
/// redactor command or server, so the calls must be made on a thread of their own.
pub(in crate::telemetry) struct PayloadRedactor {
    settings: PayloadLogSettings,
    /// `None`: only the built-in patterns are applied.
    external: Option<ExternalRedactor>,
}

/// The redacted and truncated texts of one request.
#[derive(Debug, Serialize)]
pub(in crate::telemetry) struct RedactedPayload {
    #[serde(flatten)]
    texts: PayloadTexts,
    /// Whether a part of the prompt is missing at its end.
    prompt_cut: bool,
    /// Whether a part of the response is missing at its end.
    answer_cut: bool,
    /// Number of passages that the built-in patterns replaced.
    redacted: u64,
}

/// The configured redactor command or redactor server.
enum ExternalRedactor {
    Command(CommandRedactor),
    Http(Box<HttpRedactor>),
}

/// Longest wait for the redactor command or server, per request.
const REDACTOR_TIMEOUT: Duration = Duration::from_secs(2);

impl PayloadRedactor {
    /// Creates a redactor with the redaction settings of the payload log. Quality monitoring uses
    /// these settings even if the payload log is disabled.
    pub(in crate::telemetry) fn new(
        settings: &PayloadLogSettings,
    ) -> Result<Self, PayloadSinkStartError> {
        let external = match (&settings.command, &settings.url) {
            (Some(command), _) => {
                Some(ExternalRedactor::Command(CommandRedactor::new(command.clone())))
            }
            (None, Some(url)) => Some(ExternalRedactor::Http(Box::new(HttpRedactor::new(url)?))),
            (None, None) => None,
        };
        Ok(Self { settings: settings.clone(), external })
    }

    /// Redacts and truncates the texts of one request. `None`: the redactor command or server
    /// failed, and the texts must not be used.
    pub(in crate::telemetry) fn redact_texts(
        &mut self,
        prompt: &TextExcerpt,
        answer: &TextExcerpt,
    ) -> Option<RedactedPayload> {
        let [(prompt_text, prompt_count), (answer_text, answer_count)] = [prompt, answer]
            .map(|text| redact(&String::from_utf8_lossy(text.bytes()), &self.settings.redact));
        let mut texts = PayloadTexts { prompt: prompt_text, answer: answer_text };
        match &mut self.external {
            Some(ExternalRedactor::Command(command)) => {
                texts = command.redact(&texts, REDACTOR_TIMEOUT)?;
            }
            Some(ExternalRedactor::Http(server)) => {
                texts = server.redact(&texts, REDACTOR_TIMEOUT)?;
            }
            None => {}
        }
        let max_bytes = self.settings.max_bytes;
        let prompt_cut = truncate_text(&mut texts.prompt, prompt.is_cut(), max_bytes);
        let answer_cut = truncate_text(&mut texts.answer, answer.is_cut(), max_bytes);
        let redacted = prompt_count + answer_count;
        Some(RedactedPayload { texts, prompt_cut, answer_cut, redacted })
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

//! What is done to the texts of a request before anybody gets them: what is private is taken out,
//! and what is left is cut. It fails closed.

use super::command::Command;
use super::hook::Hook;
use super::redact::redact;
use super::settings::MARGIN;
use super::{Settings, StartError};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokenweir_core::openai::Excerpt;

/// Treats texts, one request after the other. It may wait for a redactor, so it needs a thread.
pub(in crate::telemetry) struct Treatment {
    settings: Settings,
    outside: Option<Outside>,
}

/// What redactors get and give.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Texts {
    pub(super) prompt: String,
    pub(super) answer: String,
}

/// Texts that others may have.
#[derive(Debug, Serialize)]
pub(in crate::telemetry) struct Treated {
    #[serde(flatten)]
    texts: Texts,
    prompt_cut: bool,
    answer_cut: bool,
    /// How many passages the built-in patterns took out.
    redacted: u64,
}

/// Someone else who takes out what is private.
enum Outside {
    Command(Command),
    Hook(Box<Hook>),
}

/// How long a redactor may take.
const PATIENCE: Duration = Duration::from_secs(2);

impl Treatment {
    /// As the settings of the content log say, whether there is one or not.
    pub(in crate::telemetry) fn new(settings: &Settings) -> Result<Self, StartError> {
        let outside = match (&settings.command, &settings.url) {
            (Some(command), _) => Some(Outside::Command(Command::new(command.clone()))),
            (None, Some(url)) => Some(Outside::Hook(Box::new(Hook::new(url)?))),
            (None, None) => None,
        };
        Ok(Self { settings: settings.clone(), outside })
    }

    /// `None`: the redactor failed, and nobody may have them.
    pub(in crate::telemetry) fn treat(
        &mut self,
        prompt: &Excerpt,
        answer: &Excerpt,
    ) -> Option<Treated> {
        let [(prompt_text, in_prompt), (answer_text, in_answer)] = [prompt, answer]
            .map(|text| redact(&String::from_utf8_lossy(text.bytes()), &self.settings.redact));
        let mut texts = Texts { prompt: prompt_text, answer: answer_text };
        match &mut self.outside {
            Some(Outside::Command(command)) => texts = command.treat(&texts, PATIENCE)?,
            Some(Outside::Hook(hook)) => texts = hook.treat(&texts, PATIENCE)?,
            None => {}
        }
        let most = self.settings.max_bytes;
        let prompt_cut = cut(&mut texts.prompt, prompt.is_cut(), most);
        let answer_cut = cut(&mut texts.answer, answer.is_cut(), most);
        Some(Treated { texts, prompt_cut, answer_cut, redacted: in_prompt + in_answer })
    }
}

/// One object on one line.
pub(super) fn as_line(texts: &Texts) -> Vec<u8> {
    let mut line = serde_json::to_vec(texts).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Leaves `most` bytes, and drops the margin behind which a text was cut: there may be half of a
/// secret at its end. Whether anything is missing.
pub(super) fn cut(text: &mut String, was_cut: bool, most: usize) -> bool {
    let sure = if was_cut { text.len().saturating_sub(MARGIN) } else { text.len() };
    let end = text.floor_char_boundary(sure.min(most));
    let is_cut = was_cut || end < text.len();
    text.truncate(end);
    is_cut
}

//! The body of the request that continues a stream, an edited copy of the first request's body.

use super::plan::{ContinuationPlan, DEFAULT_COMPLETION_TOKENS};
use super::reasons::ContinuationRefusal;
use bytes::Bytes;
use std::fmt::Write as _;
use std::ops::Range;
use tokenweir_protocol::json::members::{number, visit_members};
use tokenweir_protocol::openai::Splice;

/// The output that the next backend continues.
pub(super) enum Continued<'a> {
    /// The token ids of the prompt and of the output.
    Ids {
        prompt: &'a [u32],
        output: &'a [u32],
    },
    /// The text of the output, with the escapes of a JSON string.
    Text(&'a str),
}

impl ContinuationPlan {
    /// The body of the request that continues a stream after `tokens` output tokens. `body`: the body
    /// of the first request.
    pub(super) fn request(
        &self,
        body: &[u8],
        continued: &Continued<'_>,
        tokens: u64,
    ) -> Result<Bytes, ContinuationRefusal> {
        let mut edits = Vec::new();
        let mut input = None;
        let mut has_max_tokens = false;
        visit_members(body, |member| {
            let name = &body[member.name];
            let value = &body[member.value.clone()];
            match name {
                b"messages" if self.is_chat => input = Some(member.value),
                b"prompt" if !self.is_chat => input = Some(member.value),
                b"max_tokens" | b"max_completion_tokens" | b"min_tokens" => {
                    has_max_tokens |= name == b"max_tokens";
                    edits.extend(number::<u64>(value).map(|limit| {
                        Splice::replace(member.value, limit.saturating_sub(tokens).to_string())
                    }));
                }
                _ => {}
            }
        })
        .and_then(|()| self.continue_prompt(body, input, continued, &mut edits))
        .ok_or(ContinuationRefusal::Unreadable)?;
        if !self.is_chat && !has_max_tokens {
            let left = DEFAULT_COMPLETION_TOKENS.saturating_sub(tokens);
            edits.extend(Splice::insert(body, &format!(r#""max_tokens":{left}"#)));
        }
        Ok(Splice::apply(&edits, body))
    }

    /// Adds the edits that make the engine continue the output. `input`: the offsets of a chat completion's
    /// messages or of a completion's prompt.
    fn continue_prompt(
        &self,
        body: &[u8],
        input: Option<Range<usize>>,
        continued: &Continued<'_>,
        edits: &mut Vec<Splice>,
    ) -> Option<()> {
        match continued {
            Continued::Ids { prompt, output } if self.is_chat => {
                let ids = id_list(prompt, output);
                let parameters = format!(r#"{{"prompt_token_ids":{ids}}}"#);
                edits.push(Splice::set(body, "kv_transfer_params", &parameters)?);
            }
            Continued::Ids { prompt, output } => {
                edits.push(Splice::replace(input?, id_list(prompt, output)));
            }
            Continued::Text(text) => {
                let end = input?.end - 1;
                let text = if self.is_chat {
                    edits.push(Splice::set(body, "add_generation_prompt", "false")?);
                    edits.push(Splice::set(body, "continue_final_message", "true")?);
                    format!(r#",{{"role":"assistant","content":"{text}"}}"#)
                } else {
                    String::from(*text)
                };
                edits.push(Splice::replace(end..end, text));
            }
        }
        Some(())
    }
}

fn id_list(prompt: &[u32], output: &[u32]) -> String {
    let mut list = String::with_capacity(2 + 7 * (prompt.len() + output.len()));
    for id in prompt.iter().chain(output) {
        list.push(if list.is_empty() { '[' } else { ',' });
        // Writing to a string cannot fail.
        let _ = write!(list, "{id}");
    }
    list.push_str(if list.is_empty() { "[]" } else { "]" });
    list
}

//! The body of the request that continues a stream: an edited copy of the first request.

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
    Ids([&'a [u32]; 2]),
    /// The text of the output, with the escapes of a JSON string.
    Text(&'a str),
}

/// The offsets of the values in a request body that a continuation changes.
#[derive(Default)]
struct Fields {
    messages: Option<Range<usize>>,
    prompt: Option<Range<usize>>,
    limits: Vec<Range<usize>>,
    has_max_tokens: bool,
    min_tokens: Option<Range<usize>>,
    add_generation_prompt: Option<Range<usize>>,
    continue_final_message: Option<Range<usize>>,
    kv_transfer_params: Option<Range<usize>>,
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
        let fields = Fields::read(body).ok_or(ContinuationRefusal::Unreadable)?;
        let mut edits = Vec::new();
        self.continue_prompt(body, &fields, continued, &mut edits)
            .ok_or(ContinuationRefusal::Unreadable)?;
        for range in fields.limits.iter().chain(&fields.min_tokens) {
            if let Some(limit) = number::<u64>(&body[range.clone()]) {
                edits.push(replaced(range, limit.saturating_sub(tokens).to_string()));
            }
        }
        if !self.is_chat && !fields.has_max_tokens {
            let left = DEFAULT_COMPLETION_TOKENS.saturating_sub(tokens);
            edits.extend(Splice::insert(body, &format!(r#""max_tokens":{left}"#)));
        }
        Ok(Splice::apply(&edits, body))
    }

    fn continue_prompt(
        &self,
        body: &[u8],
        fields: &Fields,
        continued: &Continued<'_>,
        edits: &mut Vec<Splice>,
    ) -> Option<()> {
        match continued {
            Continued::Ids(ids) if self.is_chat => {
                let params = format!(r#"{{"prompt_token_ids":{}}}"#, id_list(*ids));
                edits.push(set(
                    body,
                    "kv_transfer_params",
                    fields.kv_transfer_params.as_ref(),
                    params,
                )?);
            }
            Continued::Ids(ids) => {
                edits.push(replaced(fields.prompt.as_ref()?, id_list(*ids)));
            }
            Continued::Text(text) if self.is_chat => {
                let messages = fields.messages.as_ref()?;
                let message = format!(r#",{{"role":"assistant","content":"{text}"}}"#);
                edits.push(Splice::replace(messages.end - 1..messages.end - 1, message));
                let is_set = [
                    ("add_generation_prompt", &fields.add_generation_prompt, "false"),
                    ("continue_final_message", &fields.continue_final_message, "true"),
                ];
                for (name, range, value) in is_set {
                    edits.push(set(body, name, range.as_ref(), value.to_owned())?);
                }
            }
            Continued::Text(text) => {
                let prompt = fields.prompt.as_ref()?;
                let text = String::from(*text);
                edits.push(Splice::replace(prompt.end - 1..prompt.end - 1, text));
            }
        }
        Some(())
    }
}

impl Fields {
    fn read(body: &[u8]) -> Option<Self> {
        let mut fields = Self::default();
        visit_members(body, |member| {
            let slot = match &body[member.name] {
                b"messages" => &mut fields.messages,
                b"prompt" => &mut fields.prompt,
                b"min_tokens" => &mut fields.min_tokens,
                b"add_generation_prompt" => &mut fields.add_generation_prompt,
                b"continue_final_message" => &mut fields.continue_final_message,
                b"kv_transfer_params" => &mut fields.kv_transfer_params,
                name @ (b"max_tokens" | b"max_completion_tokens") => {
                    fields.has_max_tokens |= name == b"max_tokens";
                    fields.limits.push(member.value);
                    return;
                }
                _ => return,
            };
            *slot = Some(member.value);
        })?;
        Some(fields)
    }
}

fn replaced(range: &Range<usize>, value: String) -> Splice {
    Splice::replace(range.clone(), value)
}

/// The edit that sets the member `name` of the body. `range`: the range of the value to replace.
/// `None`: the body has no such member.
fn set(body: &[u8], name: &str, range: Option<&Range<usize>>, value: String) -> Option<Splice> {
    match range {
        Some(range) => Some(replaced(range, value)),
        None => Splice::insert(body, &format!(r#""{name}":{value}"#)),
    }
}

fn id_list(ids: [&[u32]; 2]) -> String {
    let mut list = String::with_capacity(2 + 7 * (ids[0].len() + ids[1].len()));
    for id in ids.into_iter().flatten() {
        list.push(if list.is_empty() { '[' } else { ',' });
        // Writing to a string cannot fail.
        let _ = write!(list, "{id}");
    }
    list.push_str(if list.is_empty() { "[]" } else { "]" });
    list
}

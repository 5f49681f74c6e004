//! Reads from a request whether its stream can be continued.

use super::reasons::{ContinuationMode, ContinuationRefusal};
use tokenweir_protocol::json::members::{is_set, number, visit_elements, visit_members};
use tokenweir_protocol::openai::Api;

/// The properties of a request that determine whether and how its stream can be continued.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContinuationPlan {
    /// Whether the request is a chat completion instead of a completion.
    pub(super) is_chat: bool,
    /// Whether the stream is continued by token ids instead of text.
    pub(super) is_exact: bool,
    /// Whether decoding is greedy: the engine always takes the most probable token.
    pub(super) is_greedy: bool,
    /// Whether the client asked for log probabilities in the events.
    pub(super) has_logprobs: bool,
    /// Whether the client itself asked for token ids.
    pub(super) shows_ids: bool,
    /// Maximum number of output tokens. `None`: only the context length of the model limits the output.
    pub(super) max_tokens: Option<u64>,
}

/// The value that vLLM uses if a completion request has no `max_tokens`.
pub(super) const DEFAULT_COMPLETION_TOKENS: u64 = 16;

impl ContinuationPlan {
    /// Reads the plan from the body of a request. The error is the reason why its stream cannot be continued.
    pub fn read(
        api: Option<Api>,
        body: &[u8],
        mode: ContinuationMode,
        is_greedy_only: bool,
    ) -> Result<Self, ContinuationRefusal> {
        let is_chat = match api {
            Some(Api::Chat) => true,
            Some(Api::Completions) => false,
            _ => return Err(ContinuationRefusal::Api),
        };
        let is_exact = mode == ContinuationMode::Exact;
        let mut plan = Self {
            is_chat,
            is_exact,
            ..Self::default()
        };
        let mut has_seed = false;
        let mut has_max_tokens = false;
        let mut has_max_completion_tokens = false;
        let mut refused = None;
        visit_members(body, |member| {
            let name = &body[member.name];
            let value = &body[member.value];
            let is_set = is_set(value);
            match name {
                b"logprobs" if is_chat => plan.has_logprobs |= is_set,
                b"temperature" => plan.is_greedy |= number(value) == Some(0.0),
                b"top_k" => plan.is_greedy |= number(value) == Some(1.0),
                b"seed" => has_seed = is_set,
                b"return_token_ids" => plan.shows_ids = is_set,
                b"max_completion_tokens" if is_chat => {
                    has_max_completion_tokens = is_set;
                    plan.max_tokens = number(value).or(plan.max_tokens);
                }
                b"max_tokens" => {
                    has_max_tokens = true;
                    if !has_max_completion_tokens {
                        plan.max_tokens = number(value);
                    }
                }
                _ => refused = refused.or_else(|| refusal(name, value, is_exact)),
            }
        })
        .ok_or(ContinuationRefusal::Unreadable)?;
        if let Some(refused) = refused {
            return Err(refused);
        }
        if has_seed && !plan.is_greedy {
            return Err(ContinuationRefusal::Seed);
        }
        if is_greedy_only && !plan.is_greedy {
            return Err(ContinuationRefusal::Sampled);
        }
        if !is_chat && !has_max_tokens {
            plan.max_tokens = Some(DEFAULT_COMPLETION_TOKENS);
        }
        Ok(plan)
    }

    /// Whether the gateway must add a request for token ids, because the client did not ask for them.
    pub const fn adds_token_ids(&self) -> bool {
        !self.shows_ids
    }
}

/// Why a request with this field cannot be continued. `None`: the field does not prevent it.
fn refusal(name: &[u8], value: &[u8], is_exact: bool) -> Option<ContinuationRefusal> {
    use ContinuationRefusal as R;
    let is_set = is_set(value);
    let (is_refused, reason) = match name {
        b"n" | b"best_of" => (is_set && number(value) != Some(1.0), R::Choices),
        b"use_beam_search" => (is_set, R::Choices),
        b"logprobs" | b"prompt_logprobs" => (is_set, R::Logprobs),
        b"presence_penalty" | b"frequency_penalty" => {
            (is_set && number(value) != Some(0.0), R::Penalties)
        }
        b"bad_words" => (is_set, R::Penalties),
        b"stop" => (is_set, R::StopStrings),
        b"response_format" => (is_set && !is_text_format(value), R::StructuredOutput),
        b"tool_choice" => (
            is_set && !matches!(value, b"\"auto\"" | b"\"none\""),
            R::StructuredOutput,
        ),
        b"structured_outputs" => (is_set, R::StructuredOutput),
        b"store" => (is_set, R::Stored),
        b"echo"
        | b"suffix"
        | b"kv_transfer_params"
        | b"prompt_embeds"
        | b"logits_processors"
        | b"thinking_token_budget" => (is_set, R::Field),
        b"skip_special_tokens" => (value == b"false", R::Field),
        b"truncate_prompt_tokens" | b"continue_final_message" => (is_set && !is_exact, R::Field),
        b"messages" => (is_exact && has_media(value), R::Media),
        b"prompt" => return prompt_refusal(value, is_exact),
        // An escaped name could stand for any of the names above.
        _ if name.contains(&b'\\') => (true, R::Field),
        _ => (is_set && name.starts_with(b"guided_"), R::StructuredOutput),
    };
    is_refused.then_some(reason)
}

/// Whether a `response_format` asks for plain text.
fn is_text_format(value: &[u8]) -> bool {
    let mut is_text = false;
    let mut members = 0;
    let read = visit_members(value, |member| {
        members += 1;
        is_text |= value[member.name] == *b"type" && value[member.value] == *b"\"text\"";
    });
    read.is_some() && is_text && members == 1
}

/// Whether a message has content that is not text.
fn has_media(messages: &[u8]) -> bool {
    let mut has_media = false;
    let read = visit_elements(messages, |message| {
        let message = &messages[message];
        let of_message = visit_members(message, |member| {
            if message[member.name.clone()] == *b"content" {
                has_media |= is_media_content(&message[member.value]);
            }
        });
        has_media |= of_message.is_none();
    });
    has_media || read.is_none()
}

fn is_media_content(content: &[u8]) -> bool {
    if content.first() != Some(&b'[') {
        return false;
    }
    let mut has_media = false;
    let read = visit_elements(content, |part| {
        let part = &content[part];
        let mut is_text = part.first() == Some(&b'"');
        visit_members(part, |member| {
            is_text |= part[member.name] == *b"type" && part[member.value] == *b"\"text\"";
        });
        has_media |= !is_text;
    });
    has_media || read.is_none()
}

/// Why a completion with this prompt cannot be continued. `None`: it can be continued.
fn prompt_refusal(prompt: &[u8], is_exact: bool) -> Option<ContinuationRefusal> {
    match prompt {
        [b'"', ..] => None,
        [b'[', rest @ ..] => match rest.trim_ascii_start() {
            [b'"' | b'[', ..] => Some(ContinuationRefusal::Choices),
            _ => (!is_exact).then_some(ContinuationRefusal::Field),
        },
        _ => Some(ContinuationRefusal::Field),
    }
}

//! Parses request bodies into prompts and planned outputs: the text of the prompt, the length of each output,
//! and the errors that vLLM returns before a request reaches the engine.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::settings::ModelLimits;
use crate::text::{SimulatedFinishReason, SimulatedOutput, SimulatedPrompt, mix};
use crate::wire::{GenerationApi, VllmError};

/// vLLM's default limit of choices per prompt.
const MAX_CHOICES: i64 = 16384;

/// The members of requests that the simulator uses, for all endpoints. It ignores other members, as vLLM does.
#[derive(Debug, Default, Deserialize)]
pub(super) struct InferenceRequestBody {
    model: Option<String>,
    messages: Option<Vec<ChatMessage>>,
    prompt: Option<PromptSource>,
    input: Option<PromptSource>,
    system: Option<MessageContent>,
    instructions: Option<String>,
    tools: Option<Box<RawValue>>,
    pub(super) stream: Option<bool>,
    stream_options: Option<UsageOptions>,
    n: Option<i64>,
    seed: Option<i64>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    max_output_tokens: Option<i64>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) encoding_format: Option<String>,
    tokens: Option<Vec<u32>>,
    session_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct UsageOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct ChatMessage {
    role: Option<String>,
    content: Option<MessageContent>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum MessageContent {
    Text(String),
    Parts(Vec<ContentPart>),
    Other(IgnoredAny),
}

#[derive(Debug, Deserialize)]
struct ContentPart {
    text: Option<String>,
}

/// The JSON types of a prompt outside `messages`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum PromptSource {
    Text(String),
    Tokens(Vec<u32>),
    Batch(Vec<BatchEntry>),
    Messages(Vec<ChatMessage>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum BatchEntry {
    Text(String),
    Tokens(Vec<u32>),
}

/// The sequences that a request causes in the engine, and the form of usage that the request asks for.
#[derive(Debug, Default)]
pub(super) struct GenerationWork {
    /// The prompts. Only completions and embeddings accept several.
    pub(super) prompts: Vec<SimulatedPrompt>,
    /// The outputs, `n` for each prompt. All outputs of the first prompt come first.
    pub(super) outputs: Vec<SimulatedOutput>,
    /// Maximum number of output tokens per choice.
    pub(super) max_output_tokens: u32,
    /// Whether a stream ends with a usage chunk.
    pub(super) include_usage: bool,
    /// Whether every chunk of a stream contains usage.
    pub(super) continuous_usage: bool,
    /// The session id in the body, which vLLM prefers to the header. `None`: the body has no session id.
    pub(super) session_id: Option<String>,
}

impl GenerationWork {
    pub(super) fn prompt_tokens(&self) -> u32 {
        self.prompts.iter().map(SimulatedPrompt::token_count).sum()
    }
}

impl InferenceRequestBody {
    /// Parses a body, whose content type must be JSON.
    pub(super) fn read(content_type: Option<&str>, bytes: &[u8]) -> Result<Self, VllmError> {
        let media_type = content_type
            .and_then(|value| value.split(';').next())
            .unwrap_or_default();
        if !media_type.trim().eq_ignore_ascii_case("application/json") {
            return Err(VllmError::content_type());
        }
        if bytes.is_empty() {
            return Err(VllmError::empty_body());
        }
        serde_json::from_slice(bytes).map_err(|error| VllmError::unreadable(&error))
    }

    /// Checks that the model is served. A request without a model name uses the first served model.
    pub(super) fn check_model(&self, limits: ModelLimits<'_>) -> Result<(), VllmError> {
        match &self.model {
            Some(model) if !model.is_empty() && !limits.models.contains(model) => {
                Err(VllmError::unknown_model(model, limits.models))
            }
            _ => Ok(()),
        }
    }

    /// Validates a generating request and plans its prompts and outputs.
    pub(super) fn work(
        mut self,
        api: GenerationApi,
        limits: ModelLimits<'_>,
    ) -> Result<GenerationWork, VllmError> {
        self.check_required(api)?;
        self.check_model(limits)?;
        if self.stream_options.is_some() && self.stream != Some(true) {
            return Err(VllmError::stream_options());
        }
        let n = self.choice_count()?;
        let options = self.stream_options.as_ref();
        let include_usage = options.and_then(|options| options.include_usage) == Some(true);
        let continuous = options.and_then(|options| options.continuous_usage_stats) == Some(true);
        let max_tokens = self.requested_output_tokens(limits)?;
        let session_id = self.session_id.take();
        let salt = self.seed.unwrap_or(0) as u64;
        let prompts = self.prompts();
        let longest = prompts
            .iter()
            .map(SimulatedPrompt::token_count)
            .max()
            .unwrap_or(1);
        if longest >= limits.max_model_len {
            return Err(prompt_too_long(longest, limits.max_model_len));
        }
        let min_remaining = limits.max_model_len - longest;
        let outputs = prompts.iter().flat_map(|prompt| {
            let remaining = limits.max_model_len - prompt.token_count();
            let prompt_seed = mix(prompt.hash(), salt);
            (0..n as u64)
                .map(move |choice| plan_output(mix(prompt_seed, choice), max_tokens, remaining))
        });
        Ok(GenerationWork {
            outputs: outputs.collect(),
            max_output_tokens: max_tokens.unwrap_or(min_remaining).min(min_remaining),
            include_usage,
            continuous_usage: include_usage && continuous,
            session_id,
            prompts,
        })
    }

    /// Number of choices per prompt: the field `n`, or 1 if it is absent. Fails with vLLM's error if the field
    /// is below 1 or above [`MAX_CHOICES`].
    fn choice_count(&self) -> Result<i64, VllmError> {
        let n = self.n.unwrap_or(1);
        if n < 1 {
            return Err(VllmError::bad_value(
                &format!("n must be at least 1, got {n}."),
                None,
            ));
        }
        if n > MAX_CHOICES {
            let message = format!(
                "n must be at most {MAX_CHOICES}, got {n}. To increase this limit, set the \
                 VLLM_MAX_N_SEQUENCES environment variable."
            );
            return Err(VllmError::bad_value(&message, None));
        }
        Ok(n)
    }

    /// Extracts all prompts of the request from the fields of any API.
    pub(super) fn prompts(self) -> Vec<SimulatedPrompt> {
        let mut preamble = SimulatedPrompt::default();
        if let Some(tools) = &self.tools {
            preamble.push_message("tools", tools.get());
        }
        if let Some(system) = &self.system {
            preamble.push_message("system", &system.text());
        }
        if let Some(instructions) = &self.instructions {
            preamble.push_message("system", instructions);
        }
        if let Some(tokens) = self.tokens {
            return vec![SimulatedPrompt::from_tokens(&tokens)];
        }
        if let Some(messages) = self.messages {
            return vec![chat_prompt(preamble, &messages)];
        }
        match self.input.or(self.prompt) {
            None => vec![preamble],
            Some(PromptSource::Text(text)) if preamble == SimulatedPrompt::default() => {
                vec![SimulatedPrompt::new(&text)]
            }
            Some(PromptSource::Text(text)) => {
                preamble.push_message("user", &text);
                preamble.push_message("assistant", "");
                vec![preamble]
            }
            Some(PromptSource::Tokens(tokens)) => vec![SimulatedPrompt::from_tokens(&tokens)],
            Some(PromptSource::Batch(entries)) => entries.iter().map(BatchEntry::prompt).collect(),
            Some(PromptSource::Messages(messages)) => vec![chat_prompt(preamble, &messages)],
        }
    }

    /// Checks that the members that the API requires are present.
    fn check_required(&self, api: GenerationApi) -> Result<(), VllmError> {
        let missing = match api {
            GenerationApi::Messages if self.max_tokens.is_none() => Some("max_tokens"),
            GenerationApi::Chat | GenerationApi::Messages => {
                self.messages.is_none().then_some("messages")
            }
            GenerationApi::Completions => self.prompt.is_none().then_some("prompt"),
            GenerationApi::Responses => self.input.is_none().then_some("input"),
        };
        if let Some(field) = missing {
            return Err(VllmError::missing(field));
        }
        if self.messages.as_ref().is_some_and(Vec::is_empty) {
            let message = "Cannot apply chat template to an empty conversation. \
                           Provide at least one message.";
            return Err(VllmError::bad_value(message, None));
        }
        Ok(())
    }

    /// The maximum number of output tokens in the request. `None`: the request states no maximum.
    fn requested_output_tokens(&self, limits: ModelLimits<'_>) -> Result<Option<u32>, VllmError> {
        let limit_fields = [
            ("max_completion_tokens", self.max_completion_tokens),
            ("max_output_tokens", self.max_output_tokens),
            ("max_tokens", self.max_tokens),
        ];
        let requested = limit_fields
            .iter()
            .find_map(|&(name, value)| Some((name, value?)));
        let Some((name, value)) = requested else {
            return Ok(None);
        };
        let max = limits.max_model_len;
        let message = match u32::try_from(value) {
            Ok(tokens) if (1..=max).contains(&tokens) => return Ok(Some(tokens)),
            Ok(1..) => format!(
                "{name}={value} cannot be greater than max_model_len={max}. \
                 Please request fewer output tokens."
            ),
            _ => format!("{name} must be at least 1, got {value}."),
        };
        Err(VllmError::bad_value(&message, Some((name, value))))
    }
}

impl MessageContent {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| part.text.as_deref())
                .collect(),
            Self::Other(_) => String::new(),
        }
    }
}

impl BatchEntry {
    fn prompt(&self) -> SimulatedPrompt {
        match self {
            Self::Text(text) => SimulatedPrompt::new(text),
            Self::Tokens(tokens) => SimulatedPrompt::from_tokens(tokens),
        }
    }
}

fn chat_prompt(mut prompt: SimulatedPrompt, messages: &[ChatMessage]) -> SimulatedPrompt {
    for message in messages {
        let text = message
            .content
            .as_ref()
            .map(MessageContent::text)
            .unwrap_or_default();
        prompt.push_message(message.role.as_deref().unwrap_or("user"), &text);
    }
    prompt.push_message("assistant", "");
    prompt
}

/// Plans an output. If the request has a maximum length, the output has this length. `remaining`: the number of
/// tokens that fit into the context after the prompt.
fn plan_output(seed: u64, max_tokens: Option<u32>, remaining: u32) -> SimulatedOutput {
    match max_tokens {
        Some(max_tokens) => SimulatedOutput {
            seed,
            tokens: max_tokens.min(remaining),
            finish: SimulatedFinishReason::Length,
        },
        None => SimulatedOutput::stopping(seed, remaining),
    }
}

fn prompt_too_long(tokens: u32, max_model_len: u32) -> VllmError {
    let message = format!(
        "This model's maximum context length is {max_model_len} tokens. However, your prompt \
         contains at least {tokens} input tokens, which exceeds this limit even without any output \
         tokens. Please reduce the length of the input prompt."
    );
    VllmError::bad_value(&message, Some(("input_tokens", i64::from(tokens))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(api: GenerationApi, json: &str) -> Result<GenerationWork, VllmError> {
        let models = ["tiny".to_owned()];
        let limits = ModelLimits {
            models: &models,
            max_model_len: 100,
        };
        InferenceRequestBody::read(Some("application/json; charset=utf-8"), json.as_bytes())?
            .work(api, limits)
    }

    #[test]
    fn outputs_have_the_limits_length_or_stop() {
        let limited = work(
            GenerationApi::Chat,
            r#"{"messages":[{"content":"hi"}],"max_tokens":7}"#,
        );
        let [output] = limited.expect("work").outputs[..] else {
            panic!("one output")
        };
        assert_eq!(
            (output.tokens, output.finish),
            (7, SimulatedFinishReason::Length)
        );
        let free = work(GenerationApi::Completions, r#"{"prompt":"hi","seed":3}"#).expect("work");
        assert!(free.outputs[0].tokens <= 99);
    }

    #[test]
    fn content_parts_give_the_plain_texts_prompt() {
        let text = r#"{"messages":[{"role":"user","content":"one two"}]}"#;
        let parts =
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"one two"}]}]}"#;
        let prompts = |json| work(GenerationApi::Chat, json).expect("work").prompts;
        assert_eq!(prompts(text), prompts(parts));
    }

    #[test]
    fn each_of_several_prompts_gets_n_outputs() {
        let work = work(GenerationApi::Completions, r#"{"prompt":["a","b"],"n":2}"#).expect("work");
        assert_eq!((work.prompts.len(), work.outputs.len()), (2, 4));
        assert_ne!(work.outputs[0].seed, work.outputs[1].seed);
    }

    #[test]
    fn invalid_requests_get_the_errors_of_vllm() {
        use GenerationApi::{Chat, Completions};
        let unknown = r#"{"model":"nope","messages":[{"content":"x"}]}"#;
        let long = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(400));
        let many = "max_tokens=101 cannot be greater than max_model_len=100.";
        let options = r#"{"prompt":"x","stream_options":{"include_usage":true}}"#;
        for (api, json, expected) in [
            (Chat, r#"{"model":"tiny"}"#, "'loc': 'body.messages'"),
            (
                Chat,
                unknown,
                "The model `nope` does not exist. Valid aliases: tiny.",
            ),
            (Completions, &long, "at least 100 input tokens"),
            (Completions, r#"{"prompt":"x","max_tokens":101}"#, many),
            (Completions, r#"{"prompt":"x","n":0}"#, "got 0."),
            (Completions, r#"{"prompt":"#, "'loc': 'body.10'"),
            (Completions, options, "when `stream=True`"),
        ] {
            let error = work(api, json).expect_err("refused").body(Some(api));
            assert!(error.contains(expected), "{json}: {error}");
        }
        let untyped = InferenceRequestBody::read(None, b"{}").expect_err("refused");
        assert_eq!(untyped, VllmError::content_type());
    }
}

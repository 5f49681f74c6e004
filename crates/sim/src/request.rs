//! From the JSON of a request to prompts and answers: which text counts as the prompt, how long the
//! answer will be, and what vLLM refuses before the engine hears of it.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::text::{Answer, Finish, Prompt, mix};
use super::wire::{Api, Refusal};

/// vLLM's own limit of answers to one prompt.
const MAX_N: i64 = 16384;

/// The members that matter, of all endpoints. Others are ignored, as vLLM does.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Body {
    model: Option<String>,
    messages: Option<Vec<Message>>,
    prompt: Option<Source>,
    input: Option<Source>,
    system: Option<Content>,
    instructions: Option<String>,
    tools: Option<Box<RawValue>>,
    pub(super) stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<i64>,
    seed: Option<i64>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    max_output_tokens: Option<i64>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) encoding_format: Option<String>,
    pub(super) return_token_strs: Option<bool>,
    tokens: Option<Vec<u32>>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: Option<String>,
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
    Other(IgnoredAny),
}

#[derive(Debug, Deserialize)]
struct ContentPart {
    text: Option<String>,
}

/// Where a prompt may come from when it is not a list of messages.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Source {
    Text(String),
    Tokens(Vec<u32>),
    Batch(Vec<Entry>),
    Messages(Vec<Message>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Entry {
    Text(String),
    Tokens(Vec<u32>),
}

/// What a request comes down to.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Usually one; completions and embeddings take several.
    pub(super) prompts: Vec<Prompt>,
    /// For each prompt `n` of them.
    pub(super) answers: Vec<Answer>,
    /// The longest answer there could be.
    pub(super) max_output_tokens: u32,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
}

impl Work {
    /// Tokens of all prompts.
    pub(super) fn prompt_tokens(&self) -> u32 {
        self.prompts.iter().map(Prompt::token_count).sum()
    }
}

/// What the replica serves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) models: &'a [String],
    pub(super) max_model_len: u32,
}

impl Body {
    /// Reads a body that says it is JSON.
    pub(super) fn read(content_type: Option<&str>, bytes: &[u8]) -> Result<Self, Refusal> {
        let media = content_type.and_then(|value| value.split(';').next()).unwrap_or_default();
        if !media.trim().eq_ignore_ascii_case("application/json") {
            return Err(Refusal::content_type());
        }
        if bytes.is_empty() {
            return Err(Refusal::empty_body());
        }
        serde_json::from_slice(bytes).map_err(|error| Refusal::unreadable(&error))
    }

    /// The served name, or a refusal. No name means the first model.
    pub(super) fn check_model(&self, limits: Limits<'_>) -> Result<(), Refusal> {
        match &self.model {
            Some(model) if !model.is_empty() && !limits.models.contains(model) => {
                Err(Refusal::unknown_model(model, limits.models))
            }
            _ => Ok(()),
        }
    }

    /// The work of a generating request.
    pub(super) fn work(self, api: Api, limits: Limits<'_>) -> Result<Work, Refusal> {
        self.check_required(api)?;
        self.check_model(limits)?;
        if self.stream_options.is_some() && self.stream != Some(true) {
            return Err(Refusal::stream_options());
        }
        let n = self.n.unwrap_or(1);
        if n < 1 {
            return Err(Refusal::bad_value(&format!("n must be at least 1, got {n}."), None));
        }
        if n > MAX_N {
            let message = format!(
                "n must be at most {MAX_N}, got {n}. To increase this limit, set the \
                 VLLM_MAX_N_SEQUENCES environment variable."
            );
            return Err(Refusal::bad_value(&message, None));
        }
        let options = self.stream_options.as_ref();
        let include_usage = options.and_then(|options| options.include_usage) == Some(true);
        let each = options.and_then(|options| options.continuous_usage_stats) == Some(true);
        let most = self.max_output(limits)?;
        let salt = self.seed.unwrap_or(0) as u64;
        let prompts = self.prompts();
        let longest = prompts.iter().map(Prompt::token_count).max().unwrap_or(1);
        if longest >= limits.max_model_len {
            return Err(too_long(longest, limits.max_model_len));
        }
        let room = limits.max_model_len - longest;
        let answers = prompts.iter().flat_map(|prompt| {
            let (prompt, room) =
                (mix(prompt.hash(), salt), limits.max_model_len - prompt.token_count());
            (0..n as u64).map(move |choice| answer(mix(prompt, choice), most, room))
        });
        Ok(Work {
            answers: answers.collect(),
            max_output_tokens: most.unwrap_or(room).min(room),
            include_usage,
            continuous_usage: include_usage && each,
            prompts,
        })
    }

    /// All prompts of the request, whatever it calls them.
    pub(super) fn prompts(self) -> Vec<Prompt> {
        let mut head = Prompt::default();
        if let Some(tools) = &self.tools {
            head.push_message("tools", tools.get());
        }
        if let Some(system) = &self.system {
            head.push_message("system", &system.text());
        }
        if let Some(instructions) = &self.instructions {
            head.push_message("system", instructions);
        }
        if let Some(tokens) = self.tokens {
            return vec![Prompt::from_tokens(&tokens)];
        }
        if let Some(messages) = self.messages {
            return vec![conversation(head, &messages)];
        }
        match self.input.or(self.prompt) {
            None => vec![head],
            Some(Source::Text(text)) if head == Prompt::default() => vec![Prompt::new(&text)],
            Some(Source::Text(text)) => {
                head.push_message("user", &text);
                head.push_message("assistant", "");
                vec![head]
            }
            Some(Source::Tokens(tokens)) => vec![Prompt::from_tokens(&tokens)],
            Some(Source::Batch(entries)) => entries.iter().map(Entry::prompt).collect(),
            Some(Source::Messages(messages)) => vec![conversation(head, &messages)],
        }
    }

    fn check_required(&self, api: Api) -> Result<(), Refusal> {
        let missing = match api {
            Api::Messages if self.max_tokens.is_none() => Some("max_tokens"),
            Api::Chat | Api::Messages => self.messages.is_none().then_some("messages"),
            Api::Completions => self.prompt.is_none().then_some("prompt"),
            Api::Responses => self.input.is_none().then_some("input"),
        };
        if let Some(field) = missing {
            return Err(Refusal::missing(field));
        }
        if self.messages.as_ref().is_some_and(Vec::is_empty) {
            let message = "Cannot apply chat template to an empty conversation. \
                           Provide at least one message.";
            return Err(Refusal::bad_value(message, None));
        }
        Ok(())
    }

    fn max_output(&self, limits: Limits<'_>) -> Result<Option<u32>, Refusal> {
        let asked = [
            ("max_completion_tokens", self.max_completion_tokens),
            ("max_output_tokens", self.max_output_tokens),
            ("max_tokens", self.max_tokens),
        ];
        let Some((name, most)) = asked.iter().find_map(|&(name, most)| Some((name, most?))) else {
            return Ok(None);
        };
        let max = limits.max_model_len;
        let message = match u32::try_from(most) {
            Ok(most) if (1..=max).contains(&most) => return Ok(Some(most)),
            Ok(1..) => format!(
                "{name}={most} cannot be greater than max_model_len={max}. \
                 Please request fewer output tokens."
            ),
            _ => format!("{name} must be at least 1, got {most}."),
        };
        Err(Refusal::bad_value(&message, Some((name, most))))
    }
}

impl Content {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.iter().filter_map(|part| part.text.as_deref()).collect(),
            Self::Other(_) => String::new(),
        }
    }
}

impl Entry {
    fn prompt(&self) -> Prompt {
        match self {
            Self::Text(text) => Prompt::new(text),
            Self::Tokens(tokens) => Prompt::from_tokens(tokens),
        }
    }
}

fn conversation(mut prompt: Prompt, messages: &[Message]) -> Prompt {
    for message in messages {
        let text = message.content.as_ref().map(Content::text).unwrap_or_default();
        prompt.push_message(message.role.as_deref().unwrap_or("user"), &text);
    }
    prompt.push_message("assistant", "");
    prompt
}

fn answer(seed: u64, most: Option<u32>, room: u32) -> Answer {
    match most {
        Some(most) => Answer { seed, tokens: most.min(room), finish: Finish::Length },
        None => Answer::stopping(seed, room),
    }
}

fn too_long(tokens: u32, max_model_len: u32) -> Refusal {
    let message = format!(
        "This model's maximum context length is {max_model_len} tokens. However, your prompt \
         contains at least {tokens} input tokens, which exceeds this limit even without any output \
         tokens. Please reduce the length of the input prompt."
    );
    Refusal::bad_value(&message, Some(("input_tokens", i64::from(tokens))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(api: Api, json: &str) -> Result<Work, Refusal> {
        let models = ["tiny".to_owned()];
        let limits = Limits { models: &models, max_model_len: 100 };
        Body::read(Some("application/json; charset=utf-8"), json.as_bytes())?.work(api, limits)
    }

    fn refused(api: Api, json: &str) -> String {
        work(api, json).expect_err("refused").body(Some(api))
    }

    #[test]
    fn a_limit_gives_the_length_and_without_one_the_model_stops_by_itself() {
        let limited = work(Api::Chat, r#"{"messages":[{"content":"hi"}],"max_tokens":7}"#);
        let [answer] = limited.expect("work").answers[..] else { panic!("one answer") };
        assert_eq!((answer.tokens, answer.finish), (7, Finish::Length));
        let free = work(Api::Completions, r#"{"prompt":"hi","seed":3}"#).expect("work");
        assert!(free.answers[0].tokens <= 99);
    }

    #[test]
    fn text_and_parts_make_the_same_prompt() {
        let text = r#"{"messages":[{"role":"user","content":"one two"}]}"#;
        let parts =
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"one two"}]}]}"#;
        let prompts = |json| work(Api::Chat, json).expect("work").prompts;
        assert_eq!(prompts(text), prompts(parts));
    }

    #[test]
    fn every_prompt_has_n_answers() {
        let work = work(Api::Completions, r#"{"prompt":["a","b"],"n":2}"#).expect("work");
        assert_eq!((work.prompts.len(), work.answers.len()), (2, 4));
        assert_ne!(work.answers[0].seed, work.answers[1].seed);
    }

    #[test]
    fn what_vllm_refuses_is_refused_in_its_words() {
        let missing = refused(Api::Chat, r#"{"model":"tiny"}"#);
        assert!(missing.contains("'loc': 'body.messages'"), "{missing}");
        let model = refused(Api::Chat, r#"{"model":"nope","messages":[{"content":"x"}]}"#);
        assert!(model.contains("The model `nope` does not exist. Valid aliases: tiny."));
        let long = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(400));
        assert!(refused(Api::Completions, &long).contains("at least 100 input tokens"));
        let most = refused(Api::Completions, r#"{"prompt":"x","max_tokens":101}"#);
        assert!(most.contains("max_tokens=101 cannot be greater than max_model_len=100."));
        assert!(refused(Api::Completions, r#"{"prompt":"x","n":0}"#).contains("got 0."));
        assert!(refused(Api::Completions, r#"{"prompt":"#).contains("'loc': 'body.10'"));
        let options = r#"{"prompt":"x","stream_options":{"include_usage":true}}"#;
        assert!(refused(Api::Completions, options).contains("when `stream=True`"));
        assert_eq!(Body::read(None, b"{}").expect_err("refused"), Refusal::content_type());
    }
}

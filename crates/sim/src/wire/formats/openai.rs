//! The format that chat completions and text completions share. Their templates differ.

use bytes::BytesMut;

use crate::wire::simulated_response::SimulatedResponse;
use crate::wire::template::{fill, filled, quoted, write_data_event};
use crate::wire::wire_format::{ChoiceChunk, EventContext, WireFormat};

/// The templates of the chat completions format or of the text completions format.
pub(super) struct OpenAiFormat {
    /// The text at the beginning of every chunk of a stream.
    pub(super) prefix: &'static str,
    /// The chunk before the tokens of a choice. `None`: the format has no such chunk.
    pub(super) role: Option<&'static str>,
    /// A chunk of a choice that has not finished.
    pub(super) text: &'static str,
    /// The last chunk of a choice.
    pub(super) finish: &'static str,
    /// The usage member of each chunk, if the request sets `continuous_usage_stats`.
    pub(super) continuous_usage: &'static str,
    /// The usage chunk at the end of a stream.
    pub(super) usage: &'static str,
    /// The body of a response that is not a stream.
    pub(super) body: &'static str,
    /// One choice in the body of a response that is not a stream.
    pub(super) choice: &'static str,
}

const SYSTEM_FINGERPRINT: &str = "vllm-0.32.0-f0a48782";
const FINGERPRINT_MEMBER: &str = r#","system_fingerprint":"vllm-0.32.0-f0a48782""#;

impl OpenAiFormat {
    /// The usage member of a chunk of one choice that has `completion` output tokens so far. Empty:
    /// `continuous_usage_stats` was not requested.
    fn continuous_usage(&self, reply: &SimulatedResponse, completion: u32) -> String {
        if !reply.continuous_usage {
            return String::new();
        }
        let counts = UsageCounts::new(reply.prompt_tokens, completion, 0);
        filled(self.continuous_usage, &counts.values())
    }
}

impl WireFormat for OpenAiFormat {
    fn shared_text(&self, reply: &SimulatedResponse) -> String {
        let id = quoted(&reply.id);
        let model = quoted(&reply.model);
        let created = reply.created.to_string();
        filled(
            self.prefix,
            &[("id", &id), ("created", &created), ("model", &model)],
        )
    }

    fn write_opening(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool {
        if context.stage_index >= context.reply.outputs.len() {
            return false;
        }
        let Some(role) = self.role else { return false };
        let index = context.stage_index.to_string();
        let usage = self.continuous_usage(context.reply, 0);
        let values = [
            ("prefix", context.shared_text),
            ("index", &index),
            ("usage", &usage),
        ];
        write_data_event(out, role, &values);
        true
    }

    fn write_chunk(
        &self,
        context: &EventContext<'_>,
        chunk: &ChoiceChunk<'_>,
        out: &mut BytesMut,
    ) -> bool {
        let index = chunk.choice.to_string();
        let usage = self.continuous_usage(context.reply, chunk.tokens);
        let (template, finish) = match chunk.finish {
            None => (self.text, "null".to_owned()),
            Some(finish) => (self.finish, quoted(finish.as_str())),
        };
        let content = match chunk.text {
            "" => String::new(),
            text => format!(r#""content":"{text}""#),
        };
        // A usage chunk contains the fingerprint. Without it, the finish chunk does.
        let has_fingerprint = chunk.finish.is_some() && !context.reply.include_usage;
        let values = [
            ("prefix", context.shared_text),
            ("index", &index),
            ("text", chunk.text),
            ("content", &content),
            ("finish", &finish),
            ("usage", &usage),
            (
                "fingerprint",
                if has_fingerprint {
                    FINGERPRINT_MEMBER
                } else {
                    ""
                },
            ),
        ];
        write_data_event(out, template, &values);
        true
    }

    /// Writes the next closing event: first the usage chunk, if it was requested, then `[DONE]`.
    fn write_closing(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool {
        let reply = context.reply;
        let usage_chunks = usize::from(reply.include_usage);
        if context.stage_index < usage_chunks {
            let cached = context.cached_tokens;
            let counts = UsageCounts::new(reply.prompt_tokens, reply.completion_tokens(), cached);
            let mut values = counts.values().to_vec();
            values.push(("prefix", context.shared_text));
            values.push(("fingerprint", SYSTEM_FINGERPRINT));
            write_data_event(out, self.usage, &values);
        } else if context.stage_index == usage_chunks {
            write_data_event(out, "[DONE]", &[]);
        }
        context.stage_index <= usage_chunks
    }

    fn write_body(&self, reply: &SimulatedResponse, cached_tokens: u32, out: &mut BytesMut) {
        let mut choices = BytesMut::new();
        for (index, output) in reply.outputs.iter().enumerate() {
            if index > 0 {
                choices.extend_from_slice(b",");
            }
            let index = index.to_string();
            let content = quoted(&output.text());
            let finish = ("finish", output.finish.as_str());
            fill(
                &mut choices,
                self.choice,
                &[("index", &index), ("content", &content), finish],
            );
        }
        let choices = String::from_utf8_lossy(&choices);
        let id = quoted(&reply.id);
        let model = quoted(&reply.model);
        let created = reply.created.to_string();
        let counts = UsageCounts::new(
            reply.prompt_tokens,
            reply.completion_tokens(),
            cached_tokens,
        );
        let mut values = counts.values().to_vec();
        values.extend([
            ("id", &*id),
            ("created", &*created),
            ("model", &*model),
            ("choices", &*choices),
            ("fingerprint", SYSTEM_FINGERPRINT),
        ]);
        fill(out, self.body, &values);
    }
}

/// Token counts as text.
struct UsageCounts {
    prompt: String,
    total: String,
    completion: String,
    cached: String,
}

impl UsageCounts {
    fn new(prompt: u32, completion: u32, cached: u32) -> Self {
        Self {
            prompt: prompt.to_string(),
            total: (prompt + completion).to_string(),
            completion: completion.to_string(),
            cached: cached.to_string(),
        }
    }

    fn values(&self) -> [(&'static str, &str); 4] {
        [
            ("prompt", &self.prompt),
            ("total", &self.total),
            ("completion", &self.completion),
            ("cached", &self.cached),
        ]
    }
}

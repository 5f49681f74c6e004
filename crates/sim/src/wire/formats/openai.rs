//! The parts that chat and text completions share: usage, fingerprint, `[DONE]` and choices.

use bytes::BytesMut;

use crate::wire::simulated_response::SimulatedResponse;
use crate::wire::template::{fill, filled, quoted, write_data_event};
use crate::wire::wire_format::EventContext;

/// The `system_fingerprint` of vLLM 0.32.0.
const SYSTEM_FINGERPRINT: &str = "vllm-0.32.0-f0a48782";

/// The text with which all chunks of a stream begin.
pub(super) fn render_prefix(template: &str, reply: &SimulatedResponse) -> String {
    let (id, model) = (quoted(&reply.id), quoted(&reply.model));
    let created = reply.created.to_string();
    filled(template, &[("id", &id), ("created", &created), ("model", &model)])
}

/// The usage member of a chunk of one choice that has `completion` output tokens so far. Empty
/// unless `continuous_usage_stats` was requested.
pub(super) fn continuous_usage(
    template: &str,
    reply: &SimulatedResponse,
    completion: u32,
) -> String {
    if !reply.continuous_usage {
        return String::new();
    }
    let counts = UsageCounts::new(reply.prompt_tokens, completion, 0);
    filled(template, &counts.values())
}

/// The placeholder value for the fingerprint in a finish chunk. If a usage chunk follows, the value
/// is empty, because the usage chunk contains the fingerprint.
pub(super) fn finish_fingerprint(reply: &SimulatedResponse) -> (&'static str, &'static str) {
    const MEMBER: &str = r#","system_fingerprint":"vllm-0.32.0-f0a48782""#;
    ("fingerprint", if reply.include_usage { "" } else { MEMBER })
}

/// Writes the next closing event: first the usage chunk, if it was requested, then `[DONE]`.
/// Returns false if both were written.
pub(super) fn write_closing(
    usage_template: &str,
    context: &EventContext<'_>,
    out: &mut BytesMut,
) -> bool {
    let reply = context.reply;
    let usage_chunks = usize::from(reply.include_usage);
    if context.stage_index < usage_chunks {
        let cached = context.cached_tokens;
        let counts = UsageCounts::new(reply.prompt_tokens, reply.completion_tokens(), cached);
        let [prompt, total, completion, cached] = counts.values();
        let (prefix, fingerprint) =
            (("prefix", context.shared_text), ("fingerprint", SYSTEM_FINGERPRINT));
        write_data_event(
            out,
            usage_template,
            &[prefix, prompt, total, completion, cached, fingerprint],
        );
    } else if context.stage_index == usage_chunks {
        write_data_event(out, "[DONE]", &[]);
    }
    context.stage_index <= usage_chunks
}

/// Writes the body of a response that is not a stream.
pub(super) fn write_body(
    body_template: &str,
    choice_template: &str,
    reply: &SimulatedResponse,
    cached_tokens: u32,
    out: &mut BytesMut,
) {
    let mut choices = BytesMut::new();
    for (index, output) in reply.outputs.iter().enumerate() {
        if index > 0 {
            choices.extend_from_slice(b",");
        }
        let (index, content) = (index.to_string(), quoted(&output.text()));
        let finish = ("finish", output.finish.reason());
        fill(&mut choices, choice_template, &[("index", &index), ("content", &content), finish]);
    }
    let choices = String::from_utf8_lossy(&choices);
    let (id, model) = (quoted(&reply.id), quoted(&reply.model));
    let created = reply.created.to_string();
    let counts = UsageCounts::new(reply.prompt_tokens, reply.completion_tokens(), cached_tokens);
    let [prompt, total, completion, cached] = counts.values();
    let (id, created, model) = (("id", &*id), ("created", &*created), ("model", &*model));
    let (choices, fingerprint) = (("choices", &*choices), ("fingerprint", SYSTEM_FINGERPRINT));
    fill(
        out,
        body_template,
        &[id, created, model, choices, fingerprint, prompt, total, completion, cached],
    );
}

/// Token counts as text: prompt, total, completion and cached.
struct UsageCounts([String; 4]);

impl UsageCounts {
    fn new(prompt: u32, completion: u32, cached: u32) -> Self {
        Self([prompt, prompt + completion, completion, cached].map(|tokens| tokens.to_string()))
    }

    fn values(&self) -> [(&'static str, &str); 4] {
        let Self([prompt, total, completion, cached]) = self;
        [("prompt", prompt), ("total", total), ("completion", completion), ("cached", cached)]
    }
}

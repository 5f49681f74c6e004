//! The parts that chat and text completions share: usage, fingerprint, `[DONE]` and choices.

use bytes::BytesMut;

use crate::wire::simulated_response::SimulatedResponse;
use crate::wire::template::{data, fill, filled, quoted};
use crate::wire::wire_format::EventContext;

/// The `system_fingerprint` of vLLM 0.32.0.
const SYSTEM_FINGERPRINT: &str = "vllm-0.32.0-f0a48782";

/// The common prefix of every chunk.
pub(super) fn head(template: &str, reply: &SimulatedResponse) -> String {
    let (id, model) = (quoted(&reply.id), quoted(&reply.model));
    let created = reply.created.to_string();
    filled(template, &[("id", &id), ("created", &created), ("model", &model)])
}

/// The usage in a chunk of one choice. Empty unless `continuous_usage_stats` was requested.
pub(super) fn continuous(template: &str, reply: &SimulatedResponse, completion: u32) -> String {
    if !reply.continuous_usage {
        return String::new();
    }
    let counts = UsageCounts::new(reply.prompt_tokens, completion, 0);
    filled(template, &counts.values())
}

/// The fingerprint of a finish chunk. If there is a usage chunk, the fingerprint is there instead.
pub(super) fn finish_fingerprint(reply: &SimulatedResponse) -> (&'static str, &'static str) {
    const MEMBER: &str = r#","system_fingerprint":"vllm-0.32.0-f0a48782""#;
    ("fingerprint", if reply.include_usage { "" } else { MEMBER })
}

/// Writes the usage chunk, if requested, and `[DONE]`.
pub(super) fn closing(
    usage: &str,
    place: &EventContext<'_>,
    cached_tokens: u32,
    out: &mut BytesMut,
) -> bool {
    let reply = place.reply;
    let usages = usize::from(reply.include_usage);
    if place.number < usages {
        let counts =
            UsageCounts::new(reply.prompt_tokens, reply.completion_tokens(), cached_tokens);
        let [prompt, total, completion, cached] = counts.values();
        let (head, fingerprint) = (("head", place.head), ("fingerprint", SYSTEM_FINGERPRINT));
        data(out, usage, &[head, prompt, total, completion, cached, fingerprint]);
    } else if place.number == usages {
        data(out, "[DONE]", &[]);
    }
    place.number <= usages
}

/// Writes the body of a response that is not a stream.
pub(super) fn document(
    whole: &str,
    choice: &str,
    reply: &SimulatedResponse,
    cached_tokens: u32,
    out: &mut BytesMut,
) {
    let mut choices = BytesMut::new();
    for (index, answer) in reply.answers.iter().enumerate() {
        if index > 0 {
            choices.extend_from_slice(b",");
        }
        let (index, content) = (index.to_string(), quoted(&answer.text()));
        let finish = ("finish", answer.finish.reason());
        fill(&mut choices, choice, &[("index", &index), ("content", &content), finish]);
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
        whole,
        &[id, created, model, choices, fingerprint, prompt, total, completion, cached],
    );
}

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

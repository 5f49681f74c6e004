//! What chat and text completions have in common: usage, fingerprint, `[DONE]`, choices.

use bytes::BytesMut;

use super::{FINGERPRINT, Place, Reply, data, fill, filled, quoted};

/// The beginning of every chunk.
pub(super) fn head(template: &str, reply: &Reply) -> String {
    let (id, model) = (quoted(&reply.id), quoted(&reply.model));
    let created = reply.created.to_string();
    filled(template, &[("id", &id), ("created", &created), ("model", &model)])
}

/// The usage inside a chunk of one choice; empty unless it was asked for.
pub(super) fn continuous(template: &str, reply: &Reply, completion: u32) -> String {
    if !reply.continuous_usage {
        return String::new();
    }
    let counts = Counts::new(reply.prompt_tokens, completion, 0);
    filled(template, &counts.holes())
}

/// The fingerprint of a finish chunk; it moves to the usage chunk if there is one.
pub(super) fn finish_fingerprint(reply: &Reply) -> (&'static str, &'static str) {
    const MEMBER: &str = r#","system_fingerprint":"vllm-0.32.0-f0a48782""#;
    ("fingerprint", if reply.include_usage { "" } else { MEMBER })
}

/// The usage chunk, if it was asked for, and `[DONE]`.
pub(super) fn closing(
    usage: &str,
    place: &Place<'_>,
    cached_tokens: u32,
    out: &mut BytesMut,
) -> bool {
    let reply = place.reply;
    let usages = usize::from(reply.include_usage);
    if place.number < usages {
        let counts = Counts::new(reply.prompt_tokens, reply.completion_tokens(), cached_tokens);
        let [prompt, total, completion, cached] = counts.holes();
        let (head, fingerprint) = (("head", place.head), ("fingerprint", FINGERPRINT));
        data(out, usage, &[head, prompt, total, completion, cached, fingerprint]);
    } else if place.number == usages {
        data(out, "[DONE]", &[]);
    }
    place.number <= usages
}

/// An answer that is not a stream.
pub(super) fn document(
    whole: &str,
    choice: &str,
    reply: &Reply,
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
    let counts = Counts::new(reply.prompt_tokens, reply.completion_tokens(), cached_tokens);
    let [prompt, total, completion, cached] = counts.holes();
    let (id, created, model) = (("id", &*id), ("created", &*created), ("model", &*model));
    let (choices, fingerprint) = (("choices", &*choices), ("fingerprint", FINGERPRINT));
    fill(
        out,
        whole,
        &[id, created, model, choices, fingerprint, prompt, total, completion, cached],
    );
}

struct Counts([String; 4]);

impl Counts {
    fn new(prompt: u32, completion: u32, cached: u32) -> Self {
        Self([prompt, prompt + completion, completion, cached].map(|tokens| tokens.to_string()))
    }

    fn holes(&self) -> [(&'static str, &str); 4] {
        let Self([prompt, total, completion, cached]) = self;
        [("prompt", prompt), ("total", total), ("completion", completion), ("cached", cached)]
    }
}

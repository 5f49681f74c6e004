//! A simulated engine, and what a client reads from its streams.

use serde_json::{Value, json};

const END: u32 = 50;
/// Whether the engine holds the text of this token back until the next token, as engines do for incomplete
/// characters.
const fn is_held(id: u32) -> bool {
    id % 9 == 5
}

/// A simulated engine, which computes each token from all tokens before it.
#[derive(Clone, Copy)]
pub(super) struct Engine {
    /// Whether the engine sometimes writes two tokens in one event.
    pub merges: bool,
    pub has_ids: bool,
    pub name: &'static str,
}

pub(super) const ENGINE: Engine = Engine {
    merges: false,
    has_ids: true,
    name: "a",
};

impl Engine {
    fn next(ids: &[u32]) -> u32 {
        let last = ids.last().copied().unwrap_or(1);
        (last * 31 + ids.len() as u32 * 7 + 11) % 97 + 3
    }

    /// The events of the response to a request.
    pub(super) fn answer(self, is_chat: bool, request: &[u8]) -> Vec<String> {
        let request: Value = serde_json::from_slice(request).unwrap();
        let ids =
            |value: &Value| -> Option<Vec<u32>> { serde_json::from_value(value.clone()).ok() };
        let given = if is_chat {
            &request["kv_transfer_params"]["prompt_token_ids"]
        } else {
            &request["prompt"]
        };
        let prompt = ids(given).unwrap_or_else(|| vec![7, 8, 9]);
        let max = request["max_tokens"].as_u64().unwrap_or(16);
        let returns_ids = self.has_ids && request["return_token_ids"] == true;
        let mut events = Vec::new();
        let mut event = |delta: Option<&str>, ids: &[u32], finish: Option<&str>, is_first: bool| {
            let ids = returns_ids.then_some(ids);
            let prompt = (returns_ids && is_first).then_some(&prompt);
            let mut choice =
                json!({"index": 0, "logprobs": null, "finish_reason": finish, "token_ids": ids});
            match (is_chat, delta) {
                (true, Some("")) => choice["delta"] = json!({"role": "assistant", "content": ""}),
                (true, Some(text)) => choice["delta"] = json!({"content": text}),
                (true, None) => choice["delta"] = json!({}),
                (false, text) => choice["text"] = json!(text.unwrap_or_default()),
            }
            let mut event =
                json!({"id": self.name, "created": self.name.len(), "choices": [choice]});
            if is_chat {
                event["prompt_token_ids"] = json!(prompt);
            } else {
                event["choices"][0]["prompt_token_ids"] = json!(prompt);
            }
            events.push(format!("data: {event}\n\n"));
        };
        if is_chat {
            event(Some(""), &[], None, true);
        }
        let (mut all, mut made, mut text, mut pending) =
            (prompt.clone(), 0, String::new(), Vec::new());
        if is_held(*prompt.last().unwrap()) && prompt.len() > 3 {
            text.push_str("hi ");
            text.extend(prompt[3..].iter().map(|id| format!("w{id}\u{e9} ")));
        }
        let mut is_first = !is_chat;
        let finish = loop {
            let id = Self::next(&all);
            all.push(id);
            made += 1;
            if id == END {
                event(None, &[id], None, is_first);
                break "stop";
            }
            text.extend(["w", &id.to_string(), "\u{e9} "]);
            pending.push(id);
            if made == max {
                break "length";
            }
            if is_held(id) {
                if returns_ids || !is_chat {
                    event(None, &pending, None, is_first);
                }
            } else if self.merges && id % 7 == 2 && pending.len() == 1 {
                continue;
            } else {
                event(Some(&text), &pending, None, is_first);
                text.clear();
            }
            is_first = false;
            pending.clear();
        };
        let last = (!text.is_empty()).then_some(&*text);
        event(last, &pending, Some(finish), is_first);
        let usage = json!({"prompt_tokens": prompt.len(), "completion_tokens": made, "total_tokens": prompt.len() + made as usize});
        events.push(format!(
            "data: {}\n\n",
            json!({"id": self.name, "created": self.name.len(), "choices": [], "usage": usage})
        ));
        events.push("data: [DONE]\n\n".into());
        events
    }
}

/// The contents that a client reads from a stream.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Read {
    pub text: String,
    pub ids: Vec<String>,
    pub finish: Vec<Value>,
    pub usage: Value,
    pub roles: usize,
    pub done: usize,
    pub has_token_ids: bool,
}

pub(super) fn read(stream: &[u8]) -> Read {
    let stream = std::str::from_utf8(stream).unwrap();
    let mut read = Read::default();
    for data in stream
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").unwrap())
    {
        if data == "[DONE]" {
            read.done += 1;
            continue;
        }
        let event: Value = serde_json::from_str(data).unwrap();
        let id = format!("{}{}", event["id"], event["created"]);
        if read.ids.last() != Some(&id) {
            read.ids.push(id);
        }
        if event["usage"].is_object() {
            read.usage = event["usage"].clone();
        }
        let choice = &event["choices"][0];
        let text = choice["delta"]["content"]
            .as_str()
            .or(choice["text"].as_str());
        read.text.push_str(text.unwrap_or_default());
        read.roles += usize::from(choice["delta"]["role"].is_string());
        read.finish
            .extend(Some(choice["finish_reason"].clone()).filter(Value::is_string));
        let prompt_ids =
            event["prompt_token_ids"].is_array() || choice["prompt_token_ids"].is_array();
        read.has_token_ids |= choice["token_ids"].is_array() || prompt_ids;
    }
    read
}

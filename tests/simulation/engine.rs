//! The simulated engines. The number of a request alone determines its answer. So each engine generates the
//! same answer, even when it continues the answer that another engine began.

use super::network::{World, response};
use serde_json::{Value, json};

/// A request that a client sends. Its number determines the answer that the client must get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    pub number: usize,
    pub is_chat: bool,
    pub is_stream: bool,
    pub shows_usage: bool,
    pub is_greedy: bool,
}

/// Number of tokens of each prompt. One token encodes the number of the request, two are constant.
pub(super) const PROMPT: usize = 3;
/// Token ids. The first token of a prompt is `NUMBER_ID` plus the number of the request. Word `n` of an
/// answer is `WORD_ID` plus `n`. If the engine ends the answer before its maximum length, the last token is
/// `END_ID`.
const NUMBER_ID: usize = 1_000;
const WORD_ID: usize = 100;
const END_ID: usize = 9;

impl Asked {
    pub(super) fn path(self) -> &'static str {
        if self.is_chat {
            "/v1/chat/completions"
        } else {
            "/v1/completions"
        }
    }

    pub(super) fn body(self) -> String {
        let text = format!("q{} ", self.number);
        let mut body =
            json!({"model": "tiny", "stream": self.is_stream, "max_tokens": self.limit()});
        body["temperature"] = json!(u8::from(!self.is_greedy));
        if self.shows_usage && self.is_stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        if self.is_chat {
            body["messages"] = json!([{"role": "user", "content": text}]);
        } else {
            body["prompt"] = json!(text);
        }
        body.to_string()
    }

    /// Maximum number of tokens of the answer, which the request has as `max_tokens`.
    fn limit(self) -> usize {
        3 + self.number * 5 % 23
    }

    /// Number of words of the answer, and whether the engine ends the answer before its maximum length.
    fn length(self) -> (usize, bool) {
        let natural = 2 + self.number * 7 % 19;
        (natural.min(self.limit()), natural < self.limit())
    }

    pub(super) fn text(self) -> String {
        (0..self.length().0).map(word).collect()
    }

    pub(super) fn finish(self) -> &'static str {
        if self.length().1 { "stop" } else { "length" }
    }

    pub(super) fn tokens(self) -> usize {
        let (words, ends_itself) = self.length();
        words + usize::from(ends_itself)
    }
}

const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
    transfer-encoding: chunked\r\n\r\n";

/// A server-sent event with this data, as one HTTP chunk.
pub(super) fn chunk(event: &str) -> Vec<u8> {
    let event = format!("data: {event}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}

fn word(index: usize) -> String {
    format!("w{index}é ")
}

/// Whether the engine sends the text of this token only together with the text of the next token.
const fn is_held(word: usize) -> bool {
    word % 5 == 3
}

/// A request as an engine reads it.
pub(super) struct Received {
    pub asked: Asked,
    /// Number of words of the answer that the request already contains, because another engine began the
    /// answer. The engine continues after them.
    begun: usize,
    by_ids: bool,
    has_ids: bool,
    reports_usage: bool,
}

impl Received {
    pub(super) fn read(path: &str, body: &[u8], reads_ids: bool, writes_ids: bool) -> Self {
        let request: Value = serde_json::from_slice(body).unwrap();
        let is_chat = path.contains("chat");
        let given = if is_chat {
            &request["kv_transfer_params"]["prompt_token_ids"]
        } else {
            &request["prompt"]
        };
        let given = given.as_array();
        let given = given.filter(|_| reads_ids || !is_chat);
        let texts: String = if is_chat {
            let messages = request["messages"].as_array().unwrap();
            messages
                .iter()
                .map(|message| message["content"].as_str().unwrap())
                .collect()
        } else {
            request["prompt"].as_str().unwrap_or_default().into()
        };
        let number = match given {
            Some(ids) => ids[0].as_u64().unwrap() as usize - NUMBER_ID,
            None => texts[1..texts.find(' ').unwrap()].parse().unwrap(),
        };
        let begun = given.map_or(texts.matches('w').count(), |ids| ids.len() - PROMPT);
        let reports_usage = request["stream_options"]["include_usage"] == true;
        let asked = Asked {
            number,
            is_chat,
            is_stream: request["stream"] == true,
            shows_usage: reports_usage,
            is_greedy: request["temperature"] == 0,
        };
        assert!(
            begun < asked.tokens(),
            "a continuation of an answer that is complete"
        );
        let left = request["max_tokens"].as_u64().unwrap() as usize;
        // A continuation by text does not say how many tokens its text has, so its `max_tokens` may differ
        // from the rest.
        let is_known = given.is_some() && begun > 0;
        assert!(
            !is_known || left == asked.limit() - begun,
            "max_tokens is {left}, not the rest"
        );
        let has_ids = request["return_token_ids"] == true && writes_ids;
        Self {
            asked,
            begun,
            by_ids: given.is_some(),
            has_ids,
            reports_usage,
        }
    }

    /// The bytes of the whole response to a request that is no stream.
    pub(super) fn whole(&self) -> Vec<u8> {
        let Self { asked, .. } = self;
        let (text, usage) = (asked.text(), self.usage(asked.tokens()));
        let mut choice = json!({"index": 0, "finish_reason": asked.finish()});
        if asked.is_chat {
            choice["message"] = json!({"role": "assistant", "content": text});
        } else {
            choice["text"] = json!(text);
        }
        let body = json!({"id": "x", "object": "x", "created": 1, "model": "tiny", "choices": [choice], "usage": usage});
        response("200 OK", &body.to_string())
    }

    fn usage(&self, tokens: usize) -> Value {
        let prompt = PROMPT + self.begun;
        json!({"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens})
    }

    /// The events of the stream, each as one HTTP chunk.
    pub(super) fn events(&self, name: &str, world: &World) -> Vec<Vec<u8>> {
        let Self {
            asked,
            begun,
            has_ids,
            ..
        } = *self;
        let (words, ends_itself) = asked.length();
        let prompt: Vec<usize> = [NUMBER_ID + asked.number, 2, 3]
            .into_iter()
            .chain((0..begun).map(|word| WORD_ID + word))
            .collect();
        let mut events = Vec::new();
        let mut is_first = true;
        let mut event = |text: &str, ids: &[usize], finish: Option<&str>, role: bool| {
            let ids = has_ids.then_some(ids);
            let prompt = (has_ids && std::mem::take(&mut is_first)).then_some(&prompt);
            let mut choice = json!({"index": 0, "finish_reason": finish, "token_ids": ids});
            match (asked.is_chat, role) {
                (true, true) => choice["delta"] = json!({"role": "assistant", "content": ""}),
                (true, false) if text.is_empty() => choice["delta"] = json!({}),
                (true, false) => choice["delta"] = json!({"content": text}),
                (false, _) => choice["text"] = json!(text),
            }
            let mut event = json!({"id": name, "object": "x", "created": name.len(), "model": "tiny", "choices": []});
            if asked.is_chat {
                event["prompt_token_ids"] = json!(prompt);
            } else {
                choice["prompt_token_ids"] = json!(prompt);
            }
            event["choices"] = json!([choice]);
            events.push(chunk(&event.to_string()));
        };
        if asked.is_chat {
            event("", &[], None, true);
        }
        let mut text = String::new();
        // The text of some tokens appears only with the next token. If the prompt of a continuation ends with
        // such a token, vLLM writes the text of the whole prompt into the first event.
        if self.by_ids && begun > 0 && is_held(begun - 1) {
            text = format!("q{} ", asked.number);
            text.extend((0..begun).map(word));
        }
        let (mut ids, mut next) = (Vec::new(), begun);
        while next < words {
            let group = 1 + usize::from(world.chance(0.2));
            let shown = next..(next + group).min(words);
            for index in shown.clone() {
                ids.push(WORD_ID + index);
                text.push_str(&word(index));
            }
            next = shown.end;
            if next == words && !ends_itself {
                break;
            }
            if is_held(next - 1) {
                let held = word(next - 1);
                let rest = text.split_off(text.len() - held.len());
                if !text.is_empty() || has_ids || !asked.is_chat {
                    event(&text, &ids, None, false);
                }
                (text, ids) = (rest, Vec::new());
                continue;
            }
            event(&text, &ids, None, false);
            text.clear();
            ids.clear();
        }
        if ends_itself {
            ids.push(END_ID);
        }
        event(&text, &ids, Some(asked.finish()), false);
        if self.reports_usage {
            let usage = self.usage(asked.tokens() - begun);
            events.push(chunk(&json!({"id": name, "object": "x", "created": name.len(), "model": "tiny", "choices": [], "usage": usage}).to_string()));
        }
        events.push(chunk("[DONE]"));
        let mut framed = vec![STREAM_HEAD.to_vec()];
        framed.append(&mut events);
        framed.push(b"0\r\n\r\n".to_vec());
        framed
    }
}

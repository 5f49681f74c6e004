//! The response formats of vLLM's two front ends: the bytes of each event and its meaning. This
//! code is independent of the parsers of the gateway.

use serde_json::{Value, json};

/// The API of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Chat,
    Completions,
    Responses,
    Messages,
}

/// The front end that writes the response. The Rust front end has only chat and completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrontEnd {
    Python,
    Rust,
}

/// The kind of a piece of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Reasoning,
    Answer,
    /// The name of a tool, followed by its arguments.
    ToolName,
    ToolArguments,
}

/// Token counts, as far as a response reports them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// Including cached tokens.
    pub(crate) input: Option<u64>,
    pub(crate) output: Option<u64>,
    pub(crate) cached: Option<u64>,
    pub(crate) reasoning: Option<u64>,
    /// Whether these are the final counts.
    pub(crate) is_final: bool,
}

/// One event of a response and its meaning.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// The bytes, including the blank line.
    pub(crate) bytes: Vec<u8>,
    pub(crate) output: Option<Output>,
    pub(crate) usage: Option<Usage>,
}

/// The generated tokens of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) choice: usize,
    pub(crate) tokens: u32,
    /// Whether the event reports the number of its tokens, by ids or by running counts.
    pub(crate) is_count_reported: bool,
}

/// Output of one choice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) choice: usize,
    pub(crate) channel: Channel,
    /// Empty if the tokens have no text yet.
    pub(crate) text: &'a str,
    pub(crate) tokens: u32,
    /// The ids of its tokens, if the client requested them.
    pub(crate) token_ids: Option<&'a [u32]>,
    /// The counts so far, if the client requested them with every event.
    pub(crate) so_far: Option<Usage>,
}

/// The format of one response.
#[derive(Debug, Clone)]
pub(crate) struct Dialect {
    pub(crate) shape: Shape,
    pub(crate) front_end: FrontEnd,
    pub(crate) id: String,
}

impl Shape {
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    /// Chat and completions report usage only on request and end with `[DONE]`.
    pub(crate) const fn is_older(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

impl Event {
    /// An event without counted content.
    fn plain(bytes: Vec<u8>) -> Self {
        Self { bytes, output: None, usage: None }
    }

    pub(crate) fn comment() -> Self {
        Self::plain(b": keep-alive\n\n".to_vec())
    }

    pub(crate) fn done() -> Self {
        Self::plain(b"data: [DONE]\n\n".to_vec())
    }
}

impl Dialect {
    /// The events before the first token, written with it.
    pub(crate) fn opening(
        &self,
        choices: usize,
        prompt: Usage,
        so_far: Option<Usage>,
    ) -> Vec<Event> {
        let begun = json!({ "id": self.id, "status": "in_progress", "usage": null, "output": [] });
        match self.shape {
            Shape::Chat => (0..choices).map(|choice| self.role(choice, so_far)).collect(),
            Shape::Completions => Vec::new(),
            Shape::Responses => vec![
                typed(&json!({ "type": "response.created", "response": begun })),
                typed(&json!({ "type": "response.in_progress", "response": begun })),
                typed(&json!({ "type": "response.output_item.added", "output_index": 0 })),
            ],
            Shape::Messages => {
                let usage = json!({ "input_tokens": prompt.input, "output_tokens": 0 });
                let message = json!({ "id": self.id, "model": "m", "content": [], "usage": usage });
                let start = typed(&json!({ "type": "message_start", "message": message }));
                let usage = Usage { input: prompt.input, ..Usage::default() };
                let block = json!({ "type": "text", "text": "" });
                vec![
                    Event { usage: Some(usage), ..start },
                    typed(&json!({ "type": "content_block_start", "content_block": block })),
                ]
            }
        }
    }

    /// An event with output.
    pub(crate) fn output(&self, piece: &Piece<'_>) -> Event {
        let event = match self.shape {
            Shape::Chat => {
                let delta = chat_delta(piece);
                self.choice(piece, &json!({ "delta": delta }), &Value::Null)
            }
            Shape::Completions => self.choice(piece, &json!({ "text": piece.text }), &Value::Null),
            Shape::Responses => {
                let kind = match piece.channel {
                    Channel::Reasoning => "response.reasoning_text.delta",
                    Channel::Answer => "response.output_text.delta",
                    _ => "response.function_call_arguments.delta",
                };
                typed(&json!({ "type": kind, "delta": piece.text, "output_index": 0 }))
            }
            Shape::Messages => {
                let delta = match piece.channel {
                    Channel::Reasoning => {
                        json!({ "type": "thinking_delta", "thinking": piece.text })
                    }
                    Channel::Answer => json!({ "type": "text_delta", "text": piece.text }),
                    _ => json!({ "type": "input_json_delta", "partial_json": piece.text }),
                };
                typed(&json!({ "type": "content_block_delta", "delta": delta, "index": 0 }))
            }
        };
        Event { output: Some(piece.output()), ..event }
    }

    /// The end of a choice in chat and completions, with OpenAI's finish reason. If ids are
    /// reported, the event has the stop token, which has no text.
    pub(crate) fn finish(&self, piece: &Piece<'_>, reason: &str) -> Event {
        let words = match (self.shape, self.front_end) {
            (Shape::Chat, FrontEnd::Rust) => json!({ "delta": {} }),
            (Shape::Chat, FrontEnd::Python) => json!({ "delta": { "content": "" } }),
            _ => json!({ "text": "" }),
        };
        let event = self.choice(piece, &words, &json!(reason));
        let is_output = piece.token_ids.is_some_and(|ids| !ids.is_empty());
        Event { output: is_output.then(|| piece.output()), ..event }
    }

    /// The usage event of chat and completions.
    pub(crate) fn usage(&self, usage: Usage) -> Event {
        let mut chunk = self.chunk(&json!([]));
        chunk["usage"] = counts(usage);
        Event { usage: Some(usage), ..data(&chunk) }
    }

    /// The final events of a typed stream, with the counts.
    pub(crate) fn ending(&self, reason: &str, usage: Usage) -> Vec<Event> {
        let input = usage.input.unwrap_or(0);
        let cached = usage.cached.unwrap_or(0);
        if self.shape == Shape::Responses {
            let (kind, status, details) = match reason {
                "length" => ("incomplete", "incomplete", json!({ "reason": "max_output_tokens" })),
                _ => ("completed", "completed", Value::Null),
            };
            let counts = json!({
                "input_tokens": input,
                "input_tokens_details": { "cached_tokens": cached },
                "output_tokens": usage.output,
                "output_tokens_details": { "reasoning_tokens": usage.reasoning },
            });
            let response = json!({
                "id": self.id, "status": status, "incomplete_details": details, "usage": counts,
            });
            let last = json!({ "type": format!("response.{kind}"), "response": response });
            return vec![
                typed(&json!({ "type": "response.output_text.done", "text": "the whole text" })),
                Event { usage: Some(usage), ..typed(&last) },
            ];
        }
        let reason = match reason {
            "length" => "max_tokens",
            "tool_calls" => "tool_use",
            _ => "end_turn",
        };
        // Anthropic counts cached tokens separately.
        let counts = json!({
            "input_tokens": input - cached,
            "cache_read_input_tokens": cached,
            "output_tokens": usage.output,
        });
        let delta = json!({ "stop_reason": reason, "stop_sequence": null });
        let last = json!({ "type": "message_delta", "delta": delta, "usage": counts });
        vec![
            typed(&json!({ "type": "content_block_stop", "index": 0 })),
            Event { usage: Some(usage), ..typed(&last) },
            typed(&json!({ "type": "message_stop" })),
        ]
    }

    /// An engine error during the response.
    pub(crate) fn failure(&self) -> Vec<Event> {
        let words = "EngineCore encountered an issue";
        let error = json!({ "message": words, "type": "InternalServerError", "code": 500 });
        match self.shape {
            Shape::Chat => vec![data(&json!({ "error": error })), Event::done()],
            // Python's json.dumps writes spaces.
            Shape::Completions => {
                let text = format!("data: {{\"error\": {error}}}\n\n");
                vec![Event::plain(text.into_bytes()), Event::done()]
            }
            Shape::Responses => {
                vec![typed(&json!({ "type": "error", "code": "server_error", "message": words }))]
            }
            Shape::Messages => {
                let error = json!({ "type": "api_error", "message": words });
                vec![typed(&json!({ "type": "error", "error": error }))]
            }
        }
    }

    fn role(&self, choice: usize, so_far: Option<Usage>) -> Event {
        let delta = match self.front_end {
            FrontEnd::Python => json!({ "role": "assistant", "content": "" }),
            FrontEnd::Rust => json!({ "role": "assistant" }),
        };
        let so_far = so_far.map(|usage| Usage { output: Some(0), ..usage });
        let piece = Piece::without_text(choice, None, so_far);
        self.choice(&piece, &json!({ "delta": delta }), &Value::Null)
    }

    /// An event with one choice. `words` is an object with the text in the fields of the API.
    fn choice(&self, piece: &Piece<'_>, words: &Value, finish: &Value) -> Event {
        let mut choice = words.clone();
        choice["index"] = json!(piece.choice);
        let ids = piece.token_ids.map(|ids| json!(ids));
        if self.front_end == FrontEnd::Python {
            choice["logprobs"] = Value::Null;
            choice["finish_reason"] = finish.clone();
            choice["token_ids"] = ids.unwrap_or_default();
        } else {
            let extra_members = [("finish_reason", Some(finish.clone())), ("token_ids", ids)];
            for (name, value) in extra_members {
                if let Some(value) = value.filter(|value| !value.is_null()) {
                    choice[name] = value;
                }
            }
        }
        let mut chunk = self.chunk(&json!([choice]));
        if let Some(so_far) = piece.so_far {
            chunk["usage"] = counts(so_far);
        }
        Event { usage: piece.so_far, ..data(&chunk) }
    }

    fn chunk(&self, choices: &Value) -> Value {
        let object = match self.shape {
            Shape::Chat => "chat.completion.chunk",
            _ => "text_completion",
        };
        json!({
            "id": self.id, "object": object, "created": 1_795_000_000, "model": "m",
            "choices": choices,
        })
    }
}

impl<'a> Piece<'a> {
    pub(crate) fn without_text(
        choice: usize,
        token_ids: Option<&'a [u32]>,
        so_far: Option<Usage>,
    ) -> Self {
        let tokens = token_ids.map_or(0, <[u32]>::len) as u32;
        Self { choice, channel: Channel::Answer, text: "", tokens, token_ids, so_far }
    }

    fn output(&self) -> Output {
        let is_count_reported = self.token_ids.is_some() || self.so_far.is_some();
        Output { choice: self.choice, tokens: self.tokens, is_count_reported }
    }
}

fn chat_delta(piece: &Piece<'_>) -> Value {
    let text = piece.text;
    match piece.channel {
        Channel::Reasoning => json!({ "reasoning": text }),
        Channel::Answer => json!({ "content": text }),
        Channel::ToolName => {
            let function = json!({ "name": text, "arguments": "" });
            json!({ "tool_calls": [{ "id": "call-1", "type": "function", "index": 0, "function": function }] })
        }
        Channel::ToolArguments => {
            json!({ "tool_calls": [{ "index": 0, "function": { "arguments": text } }] })
        }
    }
}

fn counts(usage: Usage) -> Value {
    let total = usage.input.unwrap_or(0) + usage.output.unwrap_or(0);
    let mut counts = json!({
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": total,
        "prompt_tokens_details": null,
    });
    if let Some(cached) = usage.cached {
        counts["prompt_tokens_details"] = json!({ "cached_tokens": cached });
    }
    if let Some(reasoning) = usage.reasoning {
        counts["completion_tokens_details"] = json!({ "reasoning_tokens": reasoning });
    }
    counts
}

fn data(value: &Value) -> Event {
    Event::plain(format!("data: {value}\n\n").into_bytes())
}

fn typed(value: &Value) -> Event {
    let kind = value["type"].as_str().unwrap_or_default();
    Event::plain(format!("event: {kind}\ndata: {value}\n\n").into_bytes())
}

//! The Responses format. Two events are written before the first token. There is neither `[DONE]`
//! nor a usage option: the last event repeats the whole response.

use bytes::BytesMut;

use crate::text::SimulatedFinishReason;
use crate::wire::simulated_response::SimulatedResponse;
use crate::wire::template::{filled, quoted, typed};
use crate::wire::wire_format::{ChoiceChunk, EventContext, WireFormat};

const RESPONSE: &str = r#"{"id":$id,"created_at":$created,"incomplete_details":$incomplete,"instructions":null,"metadata":null,"model":$model,"object":"response","output":[$output],"parallel_tool_calls":true,"temperature":$temperature,"tool_choice":"none","tools":[],"top_p":$top_p,"background":false,"max_output_tokens":$most,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"$status","text":null,"top_logprobs":null,"truncation":"disabled","usage":$usage,"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}"#;
const USAGE: &str = r#"{"input_tokens":$input,"input_tokens_details":{"cached_tokens":$cached,"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":$output,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":$total}"#;
const ITEM: &str = r#"{"id":$item,"content":[$content],"role":"assistant","status":"$status","type":"message","phase":null}"#;
const CONTENT: &str = r#"{"annotations":[],"text":$text,"type":"output_text","logprobs":null}"#;

const STATE_EVENT: &str = r#"{"response":$response,"sequence_number":$sequence,"type":"$event"}"#;
const ITEM_EVENT: &str =
    r#"{"item":$entry,"output_index":0,"sequence_number":$sequence,"type":"$event"}"#;
const PART_ADDED: &str = r#"{"content_index":0,"item_id":$item,"output_index":0,"part":{"annotations":[],"text":"","type":"output_text","logprobs":[]},"sequence_number":$sequence,"type":"$event"}"#;
const DELTA: &str = r#"{"content_index":0,"delta":"$text","item_id":$item,"logprobs":[],"output_index":0,"sequence_number":$sequence,"type":"$event"}"#;
const TEXT_DONE: &str = r#"{"content_index":0,"item_id":$item,"logprobs":[],"output_index":0,"sequence_number":$sequence,"text":$text,"type":"$event"}"#;
const PART_DONE: &str = r#"{"content_index":0,"item_id":$item,"output_index":0,"part":$content,"sequence_number":$sequence,"type":"$event"}"#;

pub(super) struct ResponsesFormat;

impl WireFormat for ResponsesFormat {
    fn early(&self) -> usize {
        2
    }

    fn head(&self, reply: &SimulatedResponse) -> String {
        quoted(&reply.item_id)
    }

    fn opening(&self, place: &EventContext<'_>, out: &mut BytesMut) -> bool {
        let response = || response(place.reply, "in_progress", None);
        match place.number {
            0 => event(place, "response.created", STATE_EVENT, &[("response", &response())], out),
            1 => {
                event(place, "response.in_progress", STATE_EVENT, &[("response", &response())], out)
            }
            2 => {
                let entry = item(place.reply, "in_progress", "");
                event(place, "response.output_item.added", ITEM_EVENT, &[("entry", &entry)], out)
            }
            3 => event(place, "response.content_part.added", PART_ADDED, &[], out),
            _ => false,
        }
    }

    fn part(&self, place: &EventContext<'_>, part: &ChoiceChunk<'_>, out: &mut BytesMut) -> bool {
        let values = [("text", part.text)];
        !part.text.is_empty() && event(place, "response.output_text.delta", DELTA, &values, out)
    }

    fn closing(&self, place: &EventContext<'_>, cached_tokens: u32, out: &mut BytesMut) -> bool {
        let reply = place.reply;
        let text = || quoted(&reply.answer().text());
        match place.number {
            0 => event(place, "response.output_text.done", TEXT_DONE, &[("text", &text())], out),
            1 => {
                let content = filled(CONTENT, &[("text", &text())]);
                let values = [("content", &*content)];
                event(place, "response.content_part.done", PART_DONE, &values, out)
            }
            2 => {
                let entry = render_completed_item(reply);
                event(place, "response.output_item.done", ITEM_EVENT, &[("entry", &entry)], out)
            }
            3 => {
                let response = completed(reply, cached_tokens);
                event(place, "response.completed", STATE_EVENT, &[("response", &response)], out)
            }
            _ => false,
        }
    }

    fn whole(&self, reply: &SimulatedResponse, cached_tokens: u32, out: &mut BytesMut) {
        out.extend_from_slice(completed(reply, cached_tokens).as_bytes());
    }
}

fn event(
    place: &EventContext<'_>,
    name: &str,
    template: &str,
    values: &[(&str, &str)],
    out: &mut BytesMut,
) -> bool {
    let mut sequence = itoa::Buffer::new();
    let sequence = sequence.format(place.sequence);
    let mut all = [("event", name), ("sequence", sequence), ("item", place.head), ("", "")];
    if let Some(&hole) = values.first() {
        all[3] = hole;
    }
    typed(out, name, template, &all);
    true
}

/// Renders the response object. `cached_tokens` is set when the response is complete.
fn response(reply: &SimulatedResponse, status: &str, cached_tokens: Option<u32>) -> String {
    let output = cached_tokens.map_or_else(String::new, |_| render_completed_item(reply));
    let usage = cached_tokens.map_or_else(|| "null".to_owned(), |cached| usage(reply, cached));
    let incomplete = match status {
        "incomplete" => r#"{"reason":"max_output_tokens"}"#,
        _ => "null",
    };
    let values = [
        ("id", &*quoted(&reply.id)),
        ("created", &reply.created.to_string()),
        ("incomplete", incomplete),
        ("model", &quoted(&reply.model)),
        ("output", &output),
        ("temperature", &format!("{:?}", reply.temperature)),
        ("top_p", &format!("{:?}", reply.top_p)),
        ("most", &reply.max_output_tokens.to_string()),
        ("status", status),
        ("usage", &usage),
    ];
    filled(RESPONSE, &values)
}

fn completed(reply: &SimulatedResponse, cached_tokens: u32) -> String {
    let status = match reply.answer().finish {
        SimulatedFinishReason::Stop => "completed",
        SimulatedFinishReason::Length => "incomplete",
    };
    response(reply, status, Some(cached_tokens))
}

fn render_completed_item(reply: &SimulatedResponse) -> String {
    let content = filled(CONTENT, &[("text", &quoted(&reply.answer().text()))]);
    item(reply, "completed", &content)
}

fn item(reply: &SimulatedResponse, status: &str, content: &str) -> String {
    let item = quoted(&reply.item_id);
    filled(ITEM, &[("item", &item), ("status", status), ("content", content)])
}

fn usage(reply: &SimulatedResponse, cached_tokens: u32) -> String {
    let output = reply.completion_tokens();
    let values = [
        ("input", &*reply.prompt_tokens.to_string()),
        ("cached", &cached_tokens.to_string()),
        ("output", &output.to_string()),
        ("total", &(reply.prompt_tokens + output).to_string()),
    ];
    filled(USAGE, &values)
}

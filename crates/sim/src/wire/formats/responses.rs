//! The Responses format. Two events are written before the first token. There is no `[DONE]` and no usage
//! option: the last event contains the complete response with its usage.

use bytes::BytesMut;

use crate::text::SimulatedFinishReason;
use crate::wire::simulated_response::SimulatedResponse;
use crate::wire::template::{filled, quoted, write_typed_event};
use crate::wire::wire_format::{ChoiceChunk, EventContext, WireFormat};

const RESPONSE: &str = r#"{"id":$id,"created_at":$created,"incomplete_details":$incomplete,"instructions":null,"metadata":null,"model":$model,"object":"response","output":[$output],"parallel_tool_calls":true,"temperature":$temperature,"tool_choice":"none","tools":[],"top_p":$top_p,"background":false,"max_output_tokens":$max_tokens,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":"$status","text":null,"top_logprobs":null,"truncation":"disabled","usage":$usage,"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,"kv_transfer_params":null,"ec_transfer_params":null,"input_messages":null,"output_messages":null}"#;
const USAGE: &str = r#"{"input_tokens":$input,"input_tokens_details":{"cached_tokens":$cached,"cache_write_tokens":0,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":$output,"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":$total}"#;
const ITEM: &str = r#"{"id":$item,"content":[$content],"role":"assistant","status":"$status","type":"message","phase":null}"#;
const CONTENT: &str = r#"{"annotations":[],"text":$text,"type":"output_text","logprobs":null}"#;

const STATE_EVENT: &str = r#"{"response":$value,"sequence_number":$sequence,"type":"$event"}"#;
const ITEM_EVENT: &str =
    r#"{"item":$value,"output_index":0,"sequence_number":$sequence,"type":"$event"}"#;
const PART_ADDED: &str = r#"{"content_index":0,"item_id":$item,"output_index":0,"part":{"annotations":[],"text":"","type":"output_text","logprobs":[]},"sequence_number":$sequence,"type":"$event"}"#;
const DELTA: &str = r#"{"content_index":0,"delta":"$value","item_id":$item,"logprobs":[],"output_index":0,"sequence_number":$sequence,"type":"$event"}"#;
const TEXT_DONE: &str = r#"{"content_index":0,"item_id":$item,"logprobs":[],"output_index":0,"sequence_number":$sequence,"text":$value,"type":"$event"}"#;
const PART_DONE: &str = r#"{"content_index":0,"item_id":$item,"output_index":0,"part":$value,"sequence_number":$sequence,"type":"$event"}"#;

/// The events before the deltas, each with its name and its template.
const OPENING_EVENTS: [(&str, &str); 4] = [
    ("response.created", STATE_EVENT),
    ("response.in_progress", STATE_EVENT),
    ("response.output_item.added", ITEM_EVENT),
    ("response.content_part.added", PART_ADDED),
];
/// The events after the deltas, each with its name and its template.
const CLOSING_EVENTS: [(&str, &str); 4] = [
    ("response.output_text.done", TEXT_DONE),
    ("response.content_part.done", PART_DONE),
    ("response.output_item.done", ITEM_EVENT),
    ("response.completed", STATE_EVENT),
];

pub(super) struct ResponsesFormat;

impl WireFormat for ResponsesFormat {
    fn early_event_count(&self) -> usize {
        2
    }

    fn shared_text(&self, reply: &SimulatedResponse) -> String {
        quoted(&reply.item_id)
    }

    fn write_opening(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool {
        let Some((name, template)) = OPENING_EVENTS.get(context.stage_index) else {
            return false;
        };
        let value = match *template {
            STATE_EVENT => render_response(context.reply, "in_progress", None),
            ITEM_EVENT => render_item(context.reply, "in_progress", ""),
            _ => String::new(),
        };
        write_event(context, name, template, &value, out)
    }

    fn write_chunk(
        &self,
        context: &EventContext<'_>,
        chunk: &ChoiceChunk<'_>,
        out: &mut BytesMut,
    ) -> bool {
        !chunk.text.is_empty()
            && write_event(
                context,
                "response.output_text.delta",
                DELTA,
                chunk.text,
                out,
            )
    }

    fn write_closing(&self, context: &EventContext<'_>, out: &mut BytesMut) -> bool {
        let Some((name, template)) = CLOSING_EVENTS.get(context.stage_index) else {
            return false;
        };
        let reply = context.reply;
        let value = match *template {
            TEXT_DONE => quoted(&reply.first_output().text()),
            PART_DONE => render_content(reply),
            ITEM_EVENT => render_completed_item(reply),
            _ => render_completed_response(reply, context.cached_tokens),
        };
        write_event(context, name, template, &value, out)
    }

    fn write_body(&self, reply: &SimulatedResponse, cached_tokens: u32, out: &mut BytesMut) {
        out.extend_from_slice(render_completed_response(reply, cached_tokens).as_bytes());
    }
}

/// Writes an event. `value` replaces the placeholder `$value` of the template. Always returns true.
fn write_event(
    context: &EventContext<'_>,
    name: &str,
    template: &str,
    value: &str,
    out: &mut BytesMut,
) -> bool {
    let sequence = context.sequence_number.to_string();
    let values = [
        ("event", name),
        ("sequence", &*sequence),
        ("item", context.shared_text),
        ("value", value),
    ];
    write_typed_event(out, name, template, &values);
    true
}

/// Renders the response object. `cached_tokens`: `None` while the response is incomplete; the object then has
/// neither output nor usage.
fn render_response(reply: &SimulatedResponse, status: &str, cached_tokens: Option<u32>) -> String {
    let output = cached_tokens.map_or_else(String::new, |_| render_completed_item(reply));
    let usage =
        cached_tokens.map_or_else(|| "null".to_owned(), |cached| render_usage(reply, cached));
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
        ("max_tokens", &reply.max_output_tokens.to_string()),
        ("status", status),
        ("usage", &usage),
    ];
    filled(RESPONSE, &values)
}

fn render_completed_response(reply: &SimulatedResponse, cached_tokens: u32) -> String {
    let status = match reply.first_output().finish {
        SimulatedFinishReason::Stop => "completed",
        SimulatedFinishReason::Length => "incomplete",
    };
    render_response(reply, status, Some(cached_tokens))
}

fn render_completed_item(reply: &SimulatedResponse) -> String {
    render_item(reply, "completed", &render_content(reply))
}

fn render_content(reply: &SimulatedResponse) -> String {
    filled(CONTENT, &[("text", &quoted(&reply.first_output().text()))])
}

fn render_item(reply: &SimulatedResponse, status: &str, content: &str) -> String {
    let item = quoted(&reply.item_id);
    filled(
        ITEM,
        &[("item", &item), ("status", status), ("content", content)],
    )
}

fn render_usage(reply: &SimulatedResponse, cached_tokens: u32) -> String {
    let output = reply.completion_tokens();
    let values = [
        ("input", &*reply.prompt_tokens.to_string()),
        ("cached", &cached_tokens.to_string()),
        ("output", &output.to_string()),
        ("total", &(reply.prompt_tokens + output).to_string()),
    ];
    filled(USAGE, &values)
}

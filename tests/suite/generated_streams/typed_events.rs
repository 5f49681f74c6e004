//! Generated streams of the Responses and Messages APIs. Their events have types, and no `[DONE]` follows.

use super::chunks::Ends;
use super::expected_stream::Meaning;
use super::framing::Framing;
use super::stream_errors;
use super::texts;
use tokenweir_protocol::openai::Usage;

const MODEL: &str = "org/model-7b";

/// Writes a stream of the Responses API.
pub(crate) fn responses(framing: &mut Framing, is_damaged: bool, ends: Ends) {
    let id = format!("resp_{:x}", framing.random.u32(..));
    framing.stream.names = Some((id.clone(), MODEL.into()));
    let state = |kind: &str, status: &str, rest: &str| {
        format!(
            r#"{{"response":{{"id":"{id}","object":"response","model":"{MODEL}","status":"{status}","output":[],{rest}}},"sequence_number":0,"type":"{kind}"}}"#
        )
    };
    let named = Meaning {
        choices: 1,
        has_names: true,
        ..Meaning::default()
    };
    for kind in ["response.created", "response.in_progress"] {
        let rest = r#""usage":null,"error":null,"incomplete_details":null,"instructions":"{\"usage\":{}}""#;
        typed(
            framing,
            kind,
            &state(kind, "in_progress", rest),
            named.clone(),
        );
    }
    let thinks = if framing.chance(30) {
        framing.random.u8(..5)
    } else {
        0
    };
    let answers = framing.random.u8(..12);
    // The first events are reasoning. If an event is malformed, it can be one of them.
    let broken = if is_damaged {
        framing.random.u8(..=answers)
    } else {
        u8::MAX
    };
    let answer_kind = [
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.refusal.delta",
        "response.mcp_call_arguments.delta",
    ][if framing.chance(70) {
        0
    } else {
        framing.random.usize(..4)
    }];
    for number in 0..thinks + answers {
        let is_reasoning = number < thinks;
        let kind = if is_reasoning {
            "response.reasoning_text.delta"
        } else {
            answer_kind
        };
        if number == 0 || number == thinks {
            let item = r#"{"item":{"id":"i","status":"in_progress","content":[]},"type":"response.output_item.added"}"#;
            typed(
                framing,
                "response.output_item.added",
                item,
                Meaning::default(),
            );
        }
        let text = texts::draw(&mut framing.random);
        let json = format!(
            r#"{{"delta":"{text}","item_id":"i","logprobs":[],"output_index":0,"type":"{kind}"}}"#
        );
        typed(framing, kind, &json, Meaning::with_output(!is_reasoning));
        if number == broken {
            stream_errors::event(framing, &json, false);
        }
    }
    let output = u64::from(thinks + answers) + 1;
    match ends {
        Ends::WithoutDone => {}
        Ends::Error if framing.random.bool() => {
            let json = r#"{"type":"error","code":"server_error","message":"x","param":null,"sequence_number":3}"#;
            let error = Some((Some("server_error"), None));
            typed(
                framing,
                "error",
                json,
                Meaning {
                    error,
                    is_last: true,
                    ..Meaning::default()
                },
            );
        }
        Ends::Error => {
            let rest = r#""error":{"code":"server_error","message":"x"},"usage":null"#;
            let json = state("response.failed", "failed", rest);
            let error = Some((Some("server_error"), None));
            let meaning = Meaning {
                error,
                is_last: true,
                ..named
            };
            typed(framing, "response.failed", &json, meaning);
        }
        Ends::Usual => last_response(framing, &state, &named, output),
    }
}

/// Writes the last event. Its response is completed or incomplete; an incomplete one can have the type
/// `response.completed`, too. Most of these events have usage.
fn last_response(
    framing: &mut Framing,
    state: &impl Fn(&str, &str, &str) -> String,
    named: &Meaning,
    output: u64,
) {
    let (kind, status, details, reason) = match framing.random.u8(..10) {
        0 => (
            "response.incomplete",
            "incomplete",
            r#"{"reason":"max_output_tokens"}"#,
            "length",
        ),
        1 => (
            "response.completed",
            "incomplete",
            r#"{"reason":"max_output_tokens"}"#,
            "length",
        ),
        2 => (
            "response.incomplete",
            "incomplete",
            r#"{"reason":"content_filter"}"#,
            "content_filter",
        ),
        _ => ("response.completed", "completed", "null", "stop"),
    };
    let input = framing.random.u64(1..100_000);
    let (cached, reasoning) = (framing.random.u64(..100), framing.random.u64(..10));
    let has_usage = !framing.chance(5);
    let usage = if has_usage {
        format!(
            r#"{{"input_tokens":{input},"input_tokens_details":{{"cached_tokens":{cached},"cached_tokens_per_turn":[{cached}]}},"output_tokens":{output},"output_tokens_details":{{"reasoning_tokens":{reasoning}}},"total_tokens":{}}}"#,
            input + output
        )
    } else {
        "null".into()
    };
    let rest = format!(r#""usage":{usage},"incomplete_details":{details},"error":null"#);
    let counts = Usage {
        input: Some(input),
        output: Some(output),
        cached: Some(cached),
        reasoning: Some(reasoning),
        cache_created: None,
    };
    let meaning = Meaning {
        finish: Some((0, reason)),
        usage: has_usage.then_some(counts),
        is_last: true,
        ..named.clone()
    };
    typed(framing, kind, &state(kind, status, &rest), meaning);
}

/// Writes a stream of the Messages API.
pub(crate) fn messages(framing: &mut Framing, is_damaged: bool, ends: Ends) {
    let id = format!("msg_{:x}", framing.random.u32(..));
    framing.stream.names = Some((id.clone(), MODEL.into()));
    let has_cache = framing.chance(40);
    let fresh = framing.random.u64(1..50_000);
    let [cached, created] = [(); 2].map(|()| has_cache.then(|| framing.random.u64(..1_000)));
    let cache = match (cached, created) {
        (Some(read), Some(created)) => {
            format!(r#","cache_read_input_tokens":{read},"cache_creation_input_tokens":{created}"#)
        }
        _ => String::new(),
    };
    // In the Messages API, `input_tokens` does not include tokens that were read from the cache or written to
    // it.
    let input = Some(fresh + cached.unwrap_or(0) + created.unwrap_or(0));
    let counts = Usage {
        input,
        cached,
        cache_created: created,
        ..Usage::default()
    };
    let start = format!(
        r#"{{"type":"message_start","message":{{"id":"{id}","type":"message","role":"assistant","content":[],"model":"{MODEL}","stop_reason":null,"usage":{{"input_tokens":{fresh},"output_tokens":0{cache}}}}}}}"#
    );
    let meaning = Meaning {
        choices: 1,
        has_names: true,
        usage: Some(counts),
        ..Meaning::default()
    };
    typed(framing, "message_start", &start, meaning);
    let pieces = message_blocks(framing, is_damaged);
    match ends {
        Ends::WithoutDone => return,
        Ends::Error => {
            let json = r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#;
            let error = Some((None, Some("overloaded_error")));
            let meaning = Meaning {
                error,
                is_last: true,
                ..Meaning::default()
            };
            return typed(framing, "error", json, meaning);
        }
        Ends::Usual => {}
    }
    let (raw, reason) = [
        ("\"end_turn\"", Some((0, "stop"))),
        ("\"stop_sequence\"", Some((0, "stop"))),
        ("\"max_tokens\"", Some((0, "length"))),
        ("\"tool_use\"", Some((0, "tool_calls"))),
        ("\"refusal\"", Some((0, "content_filter"))),
        // vLLM sends null if the engine aborted the request.
        ("null", None),
    ][framing.random.usize(..6)];
    // In this event, Anthropic reports only the output tokens, and vLLM repeats all counts.
    let (rest, counts) = if framing.random.bool() {
        (format!(r#","input_tokens":{fresh}{cache}"#), counts)
    } else {
        (String::new(), Usage::default())
    };
    let json = format!(
        r#"{{"type":"message_delta","delta":{{"stop_reason":{raw},"stop_sequence":null}},"usage":{{"output_tokens":{pieces}{rest}}}}}"#
    );
    let usage = Some(Usage {
        output: Some(pieces),
        ..counts
    });
    let meaning = Meaning {
        choices: 1,
        finish: reason,
        usage,
        ..Meaning::default()
    };
    typed(framing, "message_delta", &json, meaning);
    let meaning = Meaning {
        is_last: true,
        ..Meaning::default()
    };
    typed(
        framing,
        "message_stop",
        r#"{"type":"message_stop"}"#,
        meaning,
    );
}

/// Writes the content blocks of a message. Returns the number of events with output.
fn message_blocks(framing: &mut Framing, is_damaged: bool) -> u64 {
    let thinks = if framing.chance(30) {
        framing.random.u64(1..6)
    } else {
        0
    };
    let answers = framing.random.u64(..12);
    let is_tool = framing.chance(20);
    let broken = if is_damaged {
        framing.random.u64(..=thinks + answers)
    } else {
        u64::MAX
    };
    for number in 0..thinks + answers {
        let is_reasoning = number < thinks;
        if number == 0 || number == thinks {
            let json = r#"{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}"#;
            typed(framing, "content_block_start", json, Meaning::default());
        }
        if framing.chance(2) {
            typed(framing, "ping", r#"{"type":"ping"}"#, Meaning::default());
        }
        let is_empty = framing.chance(3);
        let text = if is_empty {
            "".into()
        } else {
            texts::draw(&mut framing.random)
        };
        let delta = match (is_reasoning, is_tool) {
            (true, _) => format!(r#"{{"type":"thinking_delta","thinking":"{text}"}}"#),
            (false, true) => format!(r#"{{"type":"input_json_delta","partial_json":"{text}"}}"#),
            (false, false) => format!(r#"{{"type":"text_delta","text":"{text}"}}"#),
        };
        let json = format!(r#"{{"type":"content_block_delta","delta":{delta},"index":0}}"#);
        typed(
            framing,
            "content_block_delta",
            &json,
            Meaning::with_output(!is_reasoning && !is_empty),
        );
        if number + 1 == thinks {
            let delta = r#"{"type":"signature_delta","signature":"c2ln"}"#;
            let json = format!(r#"{{"type":"content_block_delta","delta":{delta},"index":0}}"#);
            typed(
                framing,
                "content_block_delta",
                &json,
                Meaning::with_output(false),
            );
            typed(
                framing,
                "content_block_stop",
                r#"{"type":"content_block_stop","index":0}"#,
                Meaning::default(),
            );
        }
        if number == broken {
            stream_errors::event(framing, &json, false);
        }
    }
    thinks + answers
}

/// Writes an event whose type is in its data and mostly also in its `event` field.
#[expect(
    clippy::needless_pass_by_value,
    reason = "callers make the meaning for this call"
)]
fn typed(framing: &mut Framing, kind: &str, json: &str, meaning: Meaning) {
    let field = if framing.chance(5) { "" } else { kind };
    let is_marked = !kind.ends_with("delta") || kind == "message_delta";
    framing.event(
        field,
        json,
        Meaning {
            is_marked,
            ..meaning
        },
    );
}

//! Tests with the streams of a simulated engine, which are cut at every byte and continued.

mod engine;

use super::*;
use bytes::Bytes;
use engine::{ENGINE, Engine, Read, read};
use serde_json::{Value, json};
use tokenweir_protocol::limits::memory_charge::{Charge, MemoryLimits};
use tokenweir_protocol::openai::Api;

const UNLIMITED: MemoryLimits = MemoryLimits {
    one: usize::MAX,
    party: usize::MAX,
    total: usize::MAX,
};

fn splicer(is_chat: bool, body: &Value, mode: ContinuationMode) -> StreamSplicer {
    let api = if is_chat { Api::Chat } else { Api::Completions };
    let body = body.to_string();
    let plan = ContinuationPlan::read(Some(api), body.as_bytes(), mode, false).unwrap();
    StreamSplicer::new(Ok(plan), Charge::default(), UNLIMITED)
}

fn request(is_chat: bool, max_tokens: u64, temperature: f64) -> Value {
    let mut body = json!({"temperature": temperature, "max_tokens": max_tokens, "min_tokens": 2, "return_token_ids": true});
    if is_chat {
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
    } else {
        body["prompt"] = json!("hi");
    }
    body
}

/// The body as the client sent it: without the request for token ids.
fn asked(body: &Value) -> Value {
    let mut asked = body.clone();
    asked.as_object_mut().unwrap().remove("return_token_ids");
    asked
}

fn push(splicer: &mut StreamSplicer, bytes: &[u8]) -> Bytes {
    splicer.push(Bytes::copy_from_slice(bytes))
}

/// Returns the stream that the client reads if each stream but the last ends after the number of bytes in
/// `cuts`.
fn continued(
    is_chat: bool,
    engine: Engine,
    body: &Value,
    cuts: &[usize],
) -> Result<Read, ContinuationRefusal> {
    let mut splicer = splicer(is_chat, &asked(body), ContinuationMode::Exact);
    let mut request = body.to_string().into_bytes();
    let mut client = Vec::new();
    let names = ["a", "bb", "ccc"];
    for (name, cut) in names
        .into_iter()
        .zip(cuts.iter().map(|cut| Some(*cut)).chain([None]))
    {
        let stream = Engine { name, ..engine }.answer(is_chat, &request).concat();
        let part = &stream.as_bytes()[..cut.unwrap_or(stream.len()).min(stream.len())];
        client.extend_from_slice(&push(&mut splicer, part));
        if let Some(InterruptionCause::Diverged) = splicer.interruption() {
            return Err(ContinuationRefusal::Diverged);
        }
        if splicer.is_done() {
            break;
        }
        if cut.is_some() {
            match splicer.request(body.to_string().as_bytes()) {
                Ok(next) => request = next.to_vec(),
                Err(_) if splicer.complete(true) => {
                    client.extend_from_slice(&splicer.release());
                    break;
                }
                Err(refusal) => return Err(refusal),
            }
            splicer.switch();
        }
    }
    Ok(read(&client))
}

/// Returns a splicer that has read the first `count` events of a greedy chat completion, the
/// request body, and all events of the response.
fn after_events(count: usize) -> (StreamSplicer, Value, Vec<String>) {
    let body = request(true, 40, 0.0);
    let mut splicer = splicer(true, &asked(&body), ContinuationMode::Exact);
    let stream = ENGINE.answer(true, body.to_string().as_bytes());
    push(&mut splicer, stream[..count].concat().as_bytes());
    (splicer, body, stream)
}

fn unbroken(is_chat: bool, engine: Engine, body: &Value) -> Read {
    continued(is_chat, engine, body, &[]).unwrap()
}

#[test]
fn greedy_streams_continue_identically_from_any_byte() {
    for (is_chat, merges, max_tokens) in [
        (true, false, 12),
        (true, true, 40),
        (false, false, 40),
        (false, true, 12),
    ] {
        let (engine, body) = (
            Engine { merges, ..ENGINE },
            request(is_chat, max_tokens, 0.0),
        );
        let whole = unbroken(is_chat, engine, &body);
        assert!(
            !whole.has_token_ids && whole.done == 1 && whole.finish.len() == 1,
            "{whole:?}"
        );
        let stream = engine.answer(is_chat, body.to_string().as_bytes());
        for cut in stream[0].len()..stream.concat().len() {
            for cuts in [&[cut][..], &[cut, cut / 2]] {
                let read = continued(is_chat, engine, &body, cuts);
                assert_eq!(read.as_ref(), Ok(&whole), "cut at {cuts:?}");
            }
        }
    }
}

#[test]
fn sampled_streams_continue_or_diverge_at_any_byte() {
    for merges in [false, true] {
        let (engine, body) = (Engine { merges, ..ENGINE }, request(true, 40, 1.0));
        let whole = unbroken(true, engine, &body);
        let stream = engine.answer(true, body.to_string().as_bytes());
        for cut in stream[0].len()..stream.concat().len() {
            match continued(true, engine, &body, &[cut]) {
                Ok(read) => assert_eq!(read, whole, "cut at {cut}"),
                Err(refusal) => {
                    assert_eq!((refusal, merges), (ContinuationRefusal::Diverged, true));
                }
            }
        }
    }
}

#[test]
fn repetitions_and_missing_ids_are_refused() {
    let (mut splicer, body, stream) = after_events(6);
    splicer.request(body.to_string().as_bytes()).unwrap();
    splicer.switch();
    assert!(push(&mut splicer, stream.concat().as_bytes()).is_empty());
    assert_eq!(splicer.interruption(), Some(InterruptionCause::Diverged));
    splicer.refuse(ContinuationRefusal::Diverged);
    assert!(splicer.release().is_empty());
    let no_ids = Engine {
        has_ids: false,
        ..ENGINE
    };
    assert_eq!(
        continued(true, no_ids, &body, &[900]),
        Err(ContinuationRefusal::NoTokenIds)
    );
}

#[test]
fn missing_last_events_are_written() {
    let (body, end) = (request(true, 12, 0.0), "data: [DONE]\n\n");
    for (has_ids, lacks, asks, expected) in [
        (true, 1, true, Some("")),
        (true, 2, false, Some("")),
        (
            true,
            2,
            true,
            Some(
                r#""choices":[],"usage":{"prompt_tokens":3,"total_tokens":15,"completion_tokens":12}}"#,
            ),
        ),
        (true, 3, true, None),
        (false, 1, true, Some("")),
        (false, 2, true, None),
        (false, 2, false, Some("")),
    ] {
        let stream = Engine { has_ids, ..ENGINE }.answer(true, body.to_string().as_bytes());
        let mut splicer = splicer(true, &asked(&body), ContinuationMode::Exact);
        push(
            &mut splicer,
            stream[..stream.len() - lacks].concat().as_bytes(),
        );
        // The client must not get the beginning of the next event.
        push(&mut splicer, b"data: {\"id\"");
        assert_eq!(
            splicer.complete(asks),
            expected.is_some(),
            "{has_ids} {lacks} {asks}"
        );
        if let Some(expected) = expected {
            let written = String::from_utf8(splicer.release().to_vec()).unwrap();
            let usage = written.strip_suffix(end).unwrap();
            assert!(
                usage.trim_end().ends_with(expected) && usage.is_empty() == expected.is_empty()
            );
            assert!(splicer.finish().is_empty() && splicer.is_done());
        }
    }
}

#[test]
fn differing_repetitions_are_not_forwarded() {
    let body = request(false, 40, 0.0);
    let stream = Engine {
        merges: true,
        ..ENGINE
    }
    .answer(false, body.to_string().as_bytes());
    // The cut follows the first event with two tokens, which comes after an event with one token.
    let is_pair = |event: &String| {
        event.contains("\"text\":\"w") && event.contains(',') && {
            let ids = &event[event.find("\"token_ids\":[").unwrap()..];
            ids[..ids.find(']').unwrap()].contains(',')
        }
    };
    let end = stream.iter().position(is_pair).unwrap() + 1;
    let mut splicer = splicer(false, &asked(&body), ContinuationMode::Exact);
    push(&mut splicer, stream[..end].concat().as_bytes());
    let request = splicer.request(body.to_string().as_bytes()).unwrap();
    splicer.switch();
    let other = ENGINE
        .answer(false, &request)
        .concat()
        .replace("\"text\":\"w", "\"text\":\"v");
    assert!(push(&mut splicer, other.as_bytes()).is_empty());
    assert_eq!(splicer.interruption(), Some(InterruptionCause::Diverged));
}

#[test]
fn failure_events_are_forwarded_only_after_refusal() {
    let abort = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"abort\",\"token_ids\":[]}]}\n\n";
    let error = "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\n";
    for (event, cause) in [
        (abort, InterruptionCause::Aborted),
        (error, InterruptionCause::EngineFailed),
    ] {
        let (mut splicer, ..) = after_events(5);
        assert!(push(&mut splicer, format!("{event}data: [DONE]\n\n").as_bytes()).is_empty());
        assert_eq!(splicer.interruption(), Some(cause));
        splicer.refuse(ContinuationRefusal::NoOtherBackend);
        let released = splicer.release();
        assert_eq!(
            released,
            event.replace("[]}]", "null}]") + "data: [DONE]\n\n"
        );
    }
}

#[test]
fn a_memory_refusal_outlasts_a_failover() {
    let mut splicer = splicer(true, &request(true, 40, 0.0), ContinuationMode::Exact);
    splicer.refuse(ContinuationRefusal::Memory);
    splicer.restart();
    assert_eq!(splicer.refusal(), Some(ContinuationRefusal::Memory));
}

#[test]
fn later_errors_are_forwarded_after_refusal() {
    let error = b"data: {\"error\":{\"message\":\"EngineCore died\",\"code\":500}}\n\n";
    let (mut splicer, body, _) = after_events(4);
    splicer.request(body.to_string().as_bytes()).unwrap();
    splicer.switch();
    assert!(push(&mut splicer, error).is_empty());
    splicer.refuse(ContinuationRefusal::MaxAttempts);
    assert_eq!(splicer.release(), error[..]);
}

#[test]
fn text_continuations_append_the_output() {
    for is_chat in [true, false] {
        let body = asked(&request(is_chat, 40, 0.0));
        let mut splicer = splicer(is_chat, &body, ContinuationMode::Text);
        let text = |text: &str| {
            if is_chat {
                format!(
                    "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
                )
            } else {
                format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\"}}]}}\n\n")
            }
        };
        for part in ["a \\\"b\\\"", " \\u00e9"] {
            let event = text(part);
            assert_eq!(push(&mut splicer, event.as_bytes()), event);
        }
        let request = splicer.request(body.to_string().as_bytes()).unwrap();
        let request: Value = serde_json::from_slice(&request).unwrap();
        let mut expected = body.clone();
        (expected["max_tokens"], expected["min_tokens"]) = (json!(38), json!(0));
        if is_chat {
            let said = json!({"role": "assistant", "content": "a \"b\" é"});
            expected["messages"].as_array_mut().unwrap().push(said);
            expected["continue_final_message"] = json!(true);
            expected["add_generation_prompt"] = json!(false);
        } else {
            expected["prompt"] = json!("hia \"b\" é");
        }
        assert_eq!(request, expected);
    }
}

#[test]
fn each_token_takes_four_bytes() {
    let mut splicer = splicer(
        true,
        &asked(&request(true, 4000, 0.0)),
        ContinuationMode::Exact,
    );
    for id in 0..1000 {
        let event = format!(
            "data: {{\"id\":\"a\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"word\"}},\"token_ids\":[{id}]}}]}}\n\n"
        );
        push(&mut splicer, event.as_bytes());
    }
    assert!(splicer.kept_bytes() <= 4 << 10, "{}", splicer.kept_bytes());
}

#[test]
fn uncertain_requests_are_refused_with_a_reason() {
    use ContinuationRefusal as R;
    let read =
        |api, body: &[u8]| ContinuationPlan::read(Some(api), body, ContinuationMode::Exact, true);
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let cases = [
        (json!({"n": 2}), R::Choices),
        (json!({"prompt_logprobs": 1}), R::Logprobs),
        (json!({"stop": ["x"]}), R::StopStrings),
        (json!({"frequency_penalty": 0.5}), R::Penalties),
        (json!({"presence_penalty": 1}), R::Penalties),
        (json!({"seed": 1, "temperature": 1.5}), R::Seed),
        (json!({"temperature": 0.7}), R::Sampled),
        (json!({}), R::Sampled),
        (
            json!({"response_format": {"type": "json_object"}}),
            R::StructuredOutput,
        ),
        (json!({"guided_regex": "a"}), R::StructuredOutput),
        (json!({"tool_choice": "required"}), R::StructuredOutput),
        (json!({"store": true}), R::Stored),
        (json!({"messages": image}), R::Media),
        (json!({"kv_transfer_params": {"a": 1}}), R::Field),
        (json!({"echo": true}), R::Field),
    ];
    for (body, reason) in cases {
        let text = body.to_string();
        assert_eq!(read(Api::Chat, text.as_bytes()), Err(reason), "{body}");
        assert_eq!(read(Api::Responses, text.as_bytes()), Err(R::Api));
    }
    let accepted = json!({"n": 1, "temperature": 0, "seed": 3, "stop": [], "presence_penalty": 0.0, "logprobs": true,
        "tool_choice": "auto", "response_format": {"type": "text"}, "max_completion_tokens": 9, "max_tokens": 5,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]});
    let plan = read(Api::Chat, accepted.to_string().as_bytes());
    assert_eq!(
        plan.map(|plan| (plan.is_greedy, plan.max_tokens)),
        Ok((true, Some(9)))
    );
    assert_eq!(
        read(Api::Chat, br#"{"\u006e":2,"temperature":0}"#),
        Err(R::Field)
    );
}

#[test]
fn nothing_is_added_to_an_unfinished_event() {
    let (_, _, stream) = after_events(4);
    let event = stream[4].trim_end();
    for cut in 1..event.len() {
        let (mut splicer, ..) = after_events(4);
        assert!(push(&mut splicer, &event.as_bytes()[..cut]).is_empty());
        assert!(splicer.finish().is_empty(), "{}", &event[..cut]);
    }
    let (mut splicer, ..) = after_events(4);
    push(&mut splicer, event.as_bytes());
    let last = String::from_utf8(splicer.finish().to_vec()).unwrap();
    assert!(
        last.ends_with("}\n\n") && last.contains("\"token_ids\":null"),
        "{last}"
    );
    let (mut splicer, ..) = after_events(4);
    push(&mut splicer, b"data: [DONE]");
    assert_eq!(splicer.finish(), b"data: [DONE]\n\n"[..]);
}

#[test]
fn events_of_other_forms_pass_unchanged() {
    for stream in [
        "event: a\ndata: {}\n\ndata: {\"b\"",
        "data: {}\r\rdata: {\"b\"",
        "\r\ndata: x\r\n\r\nrest",
    ] {
        let body = request(true, 40, 0.0);
        let mut splicer = splicer(true, &asked(&body), ContinuationMode::Exact);
        let mut forwarded = Vec::new();
        for byte in stream.as_bytes() {
            forwarded.extend_from_slice(&push(&mut splicer, &[*byte]));
        }
        assert!(!forwarded.is_empty(), "{stream:?}");
        forwarded.extend_from_slice(&splicer.finish());
        assert_eq!(forwarded, stream.as_bytes(), "{stream:?}");
    }
}

#[test]
fn long_events_in_pieces_pass_whole() {
    let body = request(true, 40, 0.0);
    let mut splicer = splicer(true, &asked(&body), ContinuationMode::Exact);
    let event = format!(
        "data: {{\"choices\":[],\"x\":\"{}\"}}\n\n",
        "x".repeat(2 << 20)
    );
    let mut forwarded = 0;
    // Copying the events so far for each piece would take minutes.
    for piece in event.as_bytes().chunks(8) {
        forwarded += push(&mut splicer, piece).len();
    }
    assert_eq!(forwarded, event.len());
}

#[test]
fn usage_is_unchanged_if_its_sum_overflows() {
    let (mut splicer, body, _) = after_events(5);
    let next = splicer.request(body.to_string().as_bytes()).unwrap();
    splicer.switch();
    let most = u64::MAX;
    let events = ENGINE.answer(true, &next);
    push(&mut splicer, events[..events.len() - 2].concat().as_bytes());
    let usage = format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{most},\"total_tokens\":{most}}}}}\n\n"
    );
    let read = String::from_utf8(push(&mut splicer, usage.as_bytes()).to_vec()).unwrap();
    assert!(
        read.contains(&format!(
            "\"completion_tokens\":{most},\"total_tokens\":{most}"
        )),
        "{read}"
    );
}

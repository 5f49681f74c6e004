//! Streams of a small engine, cut at every byte and continued.

use super::*;
use crate::openai::Api;
use bytes::Bytes;
use serde_json::{Value, json};

#[derive(Debug)]
struct Unlimited;

impl MemoryBudget for Unlimited {
    fn take(&mut self, _: usize) -> bool {
        true
    }
}

const END: u32 = 50;
/// The engine holds the text of these tokens back until the next token, as for half a character.
const fn is_held(id: u32) -> bool {
    id % 9 == 5
}

/// An engine whose next token follows from all tokens before it.
#[derive(Clone, Copy)]
struct Engine {
    /// Writes two tokens in one event now and then.
    merges: bool,
    has_ids: bool,
    name: &'static str,
}

const ENGINE: Engine = Engine { merges: false, has_ids: true, name: "a" };

impl Engine {
    fn next(ids: &[u32]) -> u32 {
        let last = ids.last().copied().unwrap_or(1);
        (last * 31 + ids.len() as u32 * 7 + 11) % 97 + 3
    }

    /// The events of the response to a request.
    fn answer(self, is_chat: bool, request: &[u8]) -> Vec<String> {
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
            text.push_str(&"the decoded prompt ".repeat(30));
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

/// What a client reads from a stream.
#[derive(Debug, Default, PartialEq)]
struct Read {
    text: String,
    ids: Vec<String>,
    finish: Vec<Value>,
    usage: Value,
    roles: usize,
    done: usize,
    has_token_ids: bool,
}

fn read(stream: &[u8]) -> Read {
    let stream = std::str::from_utf8(stream).unwrap();
    let mut read = Read::default();
    for data in stream.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap()) {
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
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
        read.text.push_str(text.unwrap_or_default());
        read.roles += usize::from(choice["delta"]["role"].is_string());
        read.finish.extend(Some(choice["finish_reason"].clone()).filter(Value::is_string));
        let prompt_ids =
            event["prompt_token_ids"].is_array() || choice["prompt_token_ids"].is_array();
        read.has_token_ids |= choice["token_ids"].is_array() || prompt_ids;
    }
    read
}

fn splicer(is_chat: bool, body: &Value, mode: ContinuationMode) -> StreamSplicer {
    let api = if is_chat { Api::Chat } else { Api::Completions };
    let body = body.to_string();
    let plan = ContinuationPlan::read(Some(api), body.as_bytes(), mode, false).unwrap();
    StreamSplicer::new(Ok(plan), Box::new(Unlimited))
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

/// The body of the client, which does not ask for token ids.
fn asked(body: &Value) -> Value {
    let mut asked = body.clone();
    asked.as_object_mut().unwrap().remove("return_token_ids");
    asked
}

fn push(splicer: &mut StreamSplicer, bytes: &[u8]) -> Bytes {
    splicer.push(Bytes::copy_from_slice(bytes))
}

/// What the client reads if the streams end after so many bytes. The last stream is whole.
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
    for (name, cut) in names.into_iter().zip(cuts.iter().map(|cut| Some(*cut)).chain([None])) {
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
            request = splicer.request(body.to_string().as_bytes())?.to_vec();
            splicer.switch();
        }
    }
    Ok(read(&client))
}

fn unbroken(is_chat: bool, engine: Engine, body: &Value) -> Read {
    continued(is_chat, engine, body, &[]).unwrap()
}

#[test]
fn a_greedy_stream_that_is_cut_at_any_byte_is_continued_to_the_same_stream() {
    for (is_chat, merges, max_tokens) in
        [(true, false, 12), (true, true, 40), (false, false, 40), (false, true, 12)]
    {
        let (engine, body) = (Engine { merges, ..ENGINE }, request(is_chat, max_tokens, 0.0));
        let whole = unbroken(is_chat, engine, &body);
        assert!(!whole.has_token_ids && whole.done == 1 && whole.finish.len() == 1, "{whole:?}");
        let stream = engine.answer(is_chat, body.to_string().as_bytes());
        let mut finished = 0;
        for cut in stream[0].len()..stream.concat().len() {
            match continued(is_chat, engine, &body, &[cut]) {
                Ok(read) => assert_eq!(read, whole, "cut at {cut}"),
                Err(refusal) => {
                    assert_eq!(refusal, ContinuationRefusal::Finished, "cut at {cut}");
                    finished += 1;
                }
            }
            if let Ok(twice) = continued(is_chat, engine, &body, &[cut, cut / 2]) {
                assert_eq!(twice, whole, "cut at {cut} and {}", cut / 2);
            }
        }
        assert!(finished < 400, "only the usage: {finished}");
    }
}

#[test]
fn a_sampled_stream_is_continued_after_its_last_text_or_refused() {
    for merges in [false, true] {
        let (engine, body) = (Engine { merges, ..ENGINE }, request(true, 40, 1.0));
        let whole = unbroken(true, engine, &body);
        let stream = engine.answer(true, body.to_string().as_bytes());
        for cut in stream[0].len()..stream.concat().len() {
            match continued(true, engine, &body, &[cut]) {
                Ok(read) => assert_eq!(read, whole, "cut at {cut}"),
                Err(ContinuationRefusal::Finished) => {}
                Err(refusal) => {
                    assert_eq!((refusal, merges), (ContinuationRefusal::Diverged, true));
                }
            }
        }
    }
}

#[test]
fn a_backend_that_starts_afresh_or_gives_no_ids_is_noticed() {
    let body = request(true, 40, 0.0);
    let stream = ENGINE.answer(true, body.to_string().as_bytes());
    let mut splicer = splicer(true, &asked(&body), ContinuationMode::Exact);
    push(&mut splicer, stream[..6].concat().as_bytes());
    splicer.request(body.to_string().as_bytes()).unwrap();
    splicer.switch();
    assert!(push(&mut splicer, stream.concat().as_bytes()).is_empty());
    assert_eq!(splicer.interruption(), Some(InterruptionCause::Diverged));
    splicer.refuse(ContinuationRefusal::Diverged);
    assert!(splicer.release().is_empty());
    let no_ids = Engine { has_ids: false, ..ENGINE };
    assert_eq!(continued(true, no_ids, &body, &[900]), Err(ContinuationRefusal::NoTokenIds));
}

#[test]
fn another_text_of_a_greedy_engine_is_not_shown() {
    let body = request(false, 40, 0.0);
    let stream = Engine { merges: true, ..ENGINE }.answer(false, body.to_string().as_bytes());
    // The last event of one token is followed by one of two.
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
    let other = ENGINE.answer(false, &request).concat().replace("\"text\":\"w", "\"text\":\"v");
    assert!(push(&mut splicer, other.as_bytes()).is_empty());
    assert_eq!(splicer.interruption(), Some(InterruptionCause::Diverged));
}

#[test]
fn an_abort_or_an_engine_error_is_held_and_released_only_if_nothing_continues() {
    let abort = "data: {\"id\":\"a\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"abort\",\"token_ids\":[]}]}\n\n";
    let error = "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\n";
    for (event, cause) in
        [(abort, InterruptionCause::Aborted), (error, InterruptionCause::EngineFailed)]
    {
        let body = request(true, 40, 0.0);
        let stream = ENGINE.answer(true, body.to_string().as_bytes());
        let mut splicer = splicer(true, &asked(&body), ContinuationMode::Exact);
        push(&mut splicer, stream[..5].concat().as_bytes());
        assert!(push(&mut splicer, format!("{event}data: [DONE]\n\n").as_bytes()).is_empty());
        assert_eq!(splicer.interruption(), Some(cause));
        splicer.refuse(ContinuationRefusal::NoOtherBackend);
        let released = splicer.release();
        assert_eq!(released, event.replace("[]}]", "null}]") + "data: [DONE]\n\n");
    }
}

#[test]
fn a_text_continuation_extends_the_messages_or_the_prompt() {
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
fn a_stream_keeps_four_bytes_for_each_token() {
    let mut splicer = splicer(true, &asked(&request(true, 4000, 0.0)), ContinuationMode::Exact);
    for id in 0..1000 {
        let event = format!(
            "data: {{\"id\":\"a\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"word\"}},\"token_ids\":[{id}]}}]}}\n\n"
        );
        push(&mut splicer, event.as_bytes());
    }
    assert!(splicer.kept_bytes() <= 4 << 10, "{}", splicer.kept_bytes());
}

#[test]
fn a_request_whose_result_could_differ_is_refused_with_its_reason() {
    use ContinuationRefusal as R;
    let image =
        json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    let cases = [
        (json!({"n": 2}), R::Choices),
        (json!({"prompt_logprobs": 1}), R::Logprobs),
        (json!({"stop": ["x"]}), R::StopStrings),
        (json!({"frequency_penalty": 0.5}), R::Penalties),
        (json!({"seed": 1, "temperature": 1.5}), R::Seed),
        (json!({"temperature": 0.7}), R::Sampled),
        (json!({}), R::Sampled),
        (json!({"response_format": {"type": "json_object"}}), R::StructuredOutput),
        (json!({"guided_regex": "a"}), R::StructuredOutput),
        (json!({"tool_choice": "required"}), R::StructuredOutput),
        (json!({"store": true}), R::Stored),
        (json!({"messages": image}), R::Media),
        (json!({"kv_transfer_params": {"a": 1}}), R::Field),
    ];
    for (body, reason) in cases {
        let read = |api| {
            ContinuationPlan::read(
                Some(api),
                body.to_string().as_bytes(),
                ContinuationMode::Exact,
                true,
            )
        };
        assert_eq!(read(Api::Chat), Err(reason), "{body}");
        assert_eq!(read(Api::Responses), Err(R::Api));
    }
    let accepted = json!({"n": 1, "temperature": 0, "seed": 3, "stop": [], "presence_penalty": 0.0, "logprobs": true,
        "tool_choice": "auto", "response_format": {"type": "text"}, "max_completion_tokens": 9, "max_tokens": 5,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]});
    let read =
        |body: &[u8]| ContinuationPlan::read(Some(Api::Chat), body, ContinuationMode::Exact, true);
    let plan = read(accepted.to_string().as_bytes());
    assert_eq!(plan.map(|plan| (plan.is_greedy, plan.max_tokens)), Ok((true, Some(9))));
    assert_eq!(read(br#"{"\u006e":2,"temperature":0}"#), Err(R::Field));
}

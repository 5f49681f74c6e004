//! Continuation: after output was sent, the backend of a stream dies, stalls, aborts or is drained. The
//! stream goes on at another backend. Or it ends as it would without continuation, and the record states why.

use crate::admission::until_waiting;
use crate::restart::{Port, listed};
use crate::support::process::{GatewayProcess, folder};
use crate::support::scripted_backend::{
    Page, ScriptedBackend, Seen, Step, begin, begun_stream, chunk, event_stream_head,
    json as json_response, paused, stream_of,
};
use crate::support::test_gateway::{
    CHAT, Running, Setup, admission_settings, advance_time, body, gateway_scripted_with, post,
    read_rest, read_until, send_to, start_before,
};
use serde_json::{Value, json};
use std::time::Duration;
use tokenweir::config::AdmissionConfig;
use tokenweir_continuation::ContinuationSettings;
use tokenweir_gateway::backend::Health;
use tokenweir_gateway::backend::routes::{ModelConfig, RoutePolicy};
use tokenweir_gateway::proxy::retry::RetrySettings;
use tokenweir_request::continuation::{
    ContinuationMode, ContinuationRefusal, Continuations, InterruptionCause,
};
use tokenweir_request::record::Outcome;

const COMPLETIONS: &str = "/v1/completions";
const DEAD: &str =
    r#"{"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}"#;
/// Number of tokens of the prompt of each request.
const PROMPT: usize = 3;
const ANSWER: usize = 12;

/// Returns the events that a vLLM sends for a request: its answer is `w0 w1 …`. If the request contains the
/// beginning of this answer, the stream has only the rest.
fn events(seen: &Seen, name: &str) -> Vec<String> {
    let request: Value = serde_json::from_slice(&seen.body).unwrap();
    let is_chat = seen.head.contains(CHAT);
    let words = |text: &Value| text.as_str().unwrap_or_default().matches('w').count();
    let ids = |ids: &Value| ids.as_array().map(|ids| ids.len() - PROMPT);
    let begun = if is_chat {
        let said = &request["messages"].as_array().unwrap().last().unwrap()["content"];
        ids(&request["kv_transfer_params"]["prompt_token_ids"]).unwrap_or_else(|| words(said))
    } else {
        ids(&request["prompt"]).unwrap_or_else(|| words(&request["prompt"]))
    };
    let (prompt, has_ids) = (PROMPT + begun, request["return_token_ids"] == true);
    let prompt_ids: Vec<usize> = (1..=PROMPT)
        .chain((0..begun).map(|word| 100 + word))
        .collect();
    let prompt_ids = json!(has_ids.then_some(prompt_ids));
    let head = format!(
        r#"{{"id":"{name}","object":"x","created":{},"model":"tiny","choices":["#,
        name.len()
    );
    let mut events = Vec::new();
    if is_chat {
        events.push(format!(r#"{head}{{"index":0,"delta":{{"role":"assistant","content":""}},"finish_reason":null}}],"prompt_token_ids":{prompt_ids}}}"#));
    }
    for word in begun..ANSWER {
        let ids = json!(has_ids.then_some([100 + word]));
        let text = if is_chat {
            format!(r#""delta":{{"content":"w{word} "}}"#)
        } else {
            format!(
                r#""text":"w{word} ","prompt_token_ids":{}"#,
                if word == begun {
                    prompt_ids.clone()
                } else {
                    json!(null)
                }
            )
        };
        events.push(format!(
            r#"{head}{{"index":0,{text},"finish_reason":null,"token_ids":{ids}}}]}}"#
        ));
    }
    let text = if is_chat {
        r#""delta":{}"#
    } else {
        r#""text":"","prompt_token_ids":null"#
    };
    let end = if has_ids { "[9]" } else { "null" };
    events.push(format!(
        r#"{head}{{"index":0,{text},"finish_reason":"stop","token_ids":{end}}}]}}"#
    ));
    if request["stream_options"]["include_usage"] == true {
        let completion = ANSWER - begun + 1;
        events.push(format!(r#"{head}],"usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{completion}}}}}"#, prompt + completion));
    }
    events.push("[DONE]".into());
    events
}

/// The behaviour of the first backend after it has sent a part of its stream.
#[derive(Clone, Copy)]
enum Break {
    Close,
    Reset,
    Hang,
    Event(&'static str),
}

/// Returns an event stream with this body, which ends in order.
fn whole_stream(text: &str) -> Vec<u8> {
    let chunk = if text.is_empty() {
        String::new()
    } else {
        format!("{:x}\r\n{text}\r\n", text.len())
    };
    [
        event_stream_head().as_ref(),
        chunk.as_bytes(),
        b"0\r\n\r\n".as_slice(),
    ]
    .concat()
}

/// The names of two backends, which are the ids of their responses.
const NAMES: [&str; 2] = ["first", "next"];

/// Starts two backends. The backend that gets the first request sends `cut` bytes of its stream and then
/// breaks as `how` states.
async fn backends(cut: usize, how: Break) -> [ScriptedBackend; 2] {
    ScriptedBackend::two(move |number, index, seen| {
        let events = events(seen, NAMES[index]);
        if number > 0 {
            return vec![Step::Send(stream_of(&events))];
        }
        let mut begun = begun_stream(&events);
        begun.truncate(event_stream_head().len().saturating_add(cut));
        let begun = Step::Send(begun);
        match how {
            Break::Close => vec![begun, Step::Close],
            Break::Reset => vec![begun, Step::Reset],
            Break::Hang => vec![begun, Step::AwaitClose],
            Break::Event(event) => {
                let rest = [chunk(event), chunk("[DONE]"), b"0\r\n\r\n".to_vec()].concat();
                vec![begun, Step::Send(rest), Step::AwaitClose]
            }
        }
    })
    .await
}

fn setup(mode: ContinuationMode) -> Setup {
    let defaults = Setup::default();
    let continuation = ContinuationSettings {
        mode,
        ..defaults.continuation
    };
    Setup {
        continuation,
        injects_usage: true,
        ..defaults
    }
}

/// Sends this request. Returns the body of the response, and whether the body is complete.
async fn answer(gateway: &Running, path: &str, request: &str) -> (String, bool) {
    let (bytes, is_whole) = body(&gateway.post(path, request).await);
    (String::from_utf8(bytes).unwrap(), is_whole)
}

fn request(path: &str, members: &Value) -> String {
    let mut request = json!({"model": "tiny", "stream": true, "temperature": 0});
    match path {
        CHAT => request["messages"] = json!([{"role": "user", "content": "hi"}]),
        _ => request["prompt"] = json!("hi"),
    }
    if path == COMPLETIONS {
        request["max_tokens"] = json!(40);
    }
    for (name, value) in members.as_object().unwrap() {
        request[name] = value.clone();
    }
    request.to_string()
}

/// Returns the body that the client receives if no backend breaks.
async fn unbroken(path: &str, body_text: &str, mode: ContinuationMode) -> String {
    let fakes = backends(usize::MAX, Break::Close).await;
    let gateway = start_before(&fakes, setup(mode)).await;
    let (text, _) = answer(&gateway, path, body_text).await;
    text.replace("\"next\"", "\"first\"")
        .replace("\"created\":4", "\"created\":5")
}

/// Returns the length in bytes, with framing, of the first `count` events of the response to `body_text`.
fn length_of(path: &str, body_text: &str, count: usize) -> usize {
    let mut request: Value = serde_json::from_str(body_text).unwrap();
    (request["return_token_ids"], request["stream_options"]) =
        (json!(true), json!({"include_usage": true}));
    let (head, body) = (format!("POST {path} "), request.to_string().into());
    let seen = Seen {
        head,
        body,
        earlier: 0,
        number: 0,
    };
    events(&seen, "first")
        .iter()
        .take(count)
        .map(|event| chunk(event).len())
        .sum()
}

#[tokio::test]
async fn another_backend_continues_the_same_stream() {
    let usage = json!({"stream_options": {"include_usage": true}});
    for (mode, path, members) in [
        (ContinuationMode::Exact, CHAT, usage.clone()),
        (ContinuationMode::Exact, COMPLETIONS, json!({})),
        (ContinuationMode::Text, CHAT, json!({})),
        (ContinuationMode::Text, COMPLETIONS, usage),
    ] {
        let request = request(path, &members);
        let whole = unbroken(path, &request, mode).await;
        assert!(
            !whole.contains("token_ids\":[") && whole.ends_with("data: [DONE]\n\n"),
            "{whole}"
        );
        let first_word = if path == CHAT { 2 } else { 1 };
        for (index, events) in (first_word..=ANSWER).step_by(2).enumerate() {
            let cut = length_of(path, &request, events) + 29 * index % 120;
            let how = if index % 2 == 0 {
                Break::Reset
            } else {
                Break::Close
            };
            let fakes = backends(cut, how).await;
            let gateway = start_before(&fakes, setup(mode)).await;
            let (received, is_whole) = answer(&gateway, path, &request).await;
            let record = gateway.record().await;
            assert!(
                is_whole,
                "{mode:?} {path}, cut after {events} events: {record:?}"
            );
            assert_eq!(received, whole, "{mode:?}, after {events} events");
            assert_eq!((record.outcome, record.attempts.len()), (Outcome::Ok, 2));
            let usage = &record.observed.usage;
            assert_eq!(
                (usage.input, usage.output),
                (Some(3), Some(ANSWER as u64 + 1))
            );
            let [continuation] = &Continuations::of(&record).begun[..] else {
                panic!("one continuation")
            };
            assert_eq!(continuation.cause, InterruptionCause::Died);
            assert!(continuation.gap().is_some() && continuation.tokens > 0);
            assert_eq!(record.attempts[0].failure, Some("connection_reset"));
        }
    }
}

#[tokio::test]
async fn a_missing_end_is_completed_at_once() {
    for members in [
        json!({"stream_options": {"include_usage": true}}),
        json!({}),
    ] {
        let request = request(CHAT, &members);
        let whole = unbroken(CHAT, &request, ContinuationMode::Exact).await;
        // The stream first lacks only the end of the body, then also `[DONE]`, then also the usage event,
        // which the gateway always requests.
        for lacking in 0..3 {
            let cut = length_of(CHAT, &request, ANSWER + 4 - lacking);
            let fakes = backends(cut, Break::Close).await;
            let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
            let received = answer(&gateway, CHAT, &request).await;
            assert_eq!(received, (whole.clone(), true), "{lacking}");
            let record = gateway.record().await;
            let usage = &record.observed.usage;
            assert_eq!((record.outcome, record.attempts.len()), (Outcome::Ok, 1));
            assert_eq!(
                (usage.input, usage.output),
                (Some(3), Some(ANSWER as u64 + 1))
            );
            let (refusal, failure) = match lacking {
                0 => (None, None),
                _ => (
                    Some(ContinuationRefusal::Completed),
                    Some("connection_reset"),
                ),
            };
            assert_eq!(Continuations::of(&record).refusal, refusal);
            assert_eq!(record.attempts[0].failure, failure);
        }
    }
}

#[tokio::test]
async fn stalls_aborts_and_engine_errors_are_continued() {
    let abort =
        r#"{"id":"first","created":5,"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}"#;
    let request = request(CHAT, &json!({}));
    let whole = unbroken(CHAT, &request, ContinuationMode::Exact).await;
    for (how, cause) in [
        (Break::Hang, InterruptionCause::Stalled),
        (Break::Event(abort), InterruptionCause::Aborted),
        (Break::Event(DEAD), InterruptionCause::EngineFailed),
    ] {
        let fakes = backends(length_of(CHAT, &request, 5), how).await;
        let mut setup = setup(ContinuationMode::Exact);
        setup.observation.stalls.abort_after = Some(Duration::from_millis(200));
        let gateway = start_before(&fakes, setup).await;
        let received = answer(&gateway, CHAT, &request).await;
        assert_eq!(received, (whole.clone(), true), "{cause:?}");
        let record = gateway.record().await;
        assert_eq!(Continuations::of(&record).begun[0].cause, cause);
        assert_eq!(Continuations::of(&record).begun[0].tokens, 4);
    }
}

#[tokio::test]
async fn a_truncated_stream_states_why() {
    for (members, reason) in [
        (json!({"n": 2}), ContinuationRefusal::Choices),
        (json!({"echo": true}), ContinuationRefusal::Field),
    ] {
        let request = request(CHAT, &members);
        let whole = unbroken(CHAT, &request, ContinuationMode::Off).await;
        let fakes = backends(length_of(CHAT, &request, 4), Break::Close).await;
        let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
        let (received, is_whole) = answer(&gateway, CHAT, &request).await;
        assert!(!is_whole && whole.starts_with(&received), "{reason:?}");
        let record = gateway.record().await;
        assert_eq!(
            (record.outcome, Continuations::of(&record).refusal),
            (Outcome::Truncated, Some(reason))
        );
        assert_eq!(
            fakes.iter().map(|fake| fake.seen().len()).sum::<usize>(),
            1,
            "{reason:?}"
        );
        let series = format!(
            "tokenweir_stream_continuations_refused_total{{reason=\"{}\"}}",
            reason.as_str()
        );
        gateway.assert_value(&series, 1.0).await;
    }
}

#[tokio::test]
async fn output_of_a_fresh_start_is_dropped() {
    // The second backend ignores token ids in a request, as vLLM's Rust front end does.
    let fakes = ScriptedBackend::two(|number, _, seen| {
        let mut request: Value = serde_json::from_slice(&seen.body).unwrap();
        request["kv_transfer_params"] = Value::Null;
        let fresh = Seen {
            body: request.to_string().into(),
            ..seen.clone()
        };
        let events = events(&fresh, "first");
        vec![
            begin(if number == 0 { &events[..4] } else { &events }),
            Step::Close,
        ]
    })
    .await;
    let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
    let (received, is_whole) = answer(&gateway, CHAT, &request(CHAT, &json!({}))).await;
    assert!(
        !is_whole && received.contains("w2") && received.matches("w0").count() == 1,
        "{received}"
    );
    let record = gateway.record().await;
    assert_eq!(record.outcome, Outcome::Truncated);
    assert_eq!(
        Continuations::of(&record).refusal,
        Some(ContinuationRefusal::Diverged)
    );
}

/// Starts two backends. The first one resets its stream after `cut` bytes, and the next request gets `next`.
/// `is_continued`: whether later requests get the rest of the stream. Otherwise they get `next`, too.
async fn after_a_reset(
    cut: usize,
    next: impl Fn(&[String]) -> Vec<u8> + Send + Sync + 'static,
    is_continued: bool,
) -> [ScriptedBackend; 2] {
    ScriptedBackend::two(move |number, _, seen| {
        let events = events(seen, NAMES[usize::from(number > 0)]);
        match number {
            0 => {
                let mut begun = begun_stream(&events);
                begun.truncate(event_stream_head().len() + cut);
                vec![Step::Send(begun), Step::Reset]
            }
            2.. if is_continued => vec![Step::Send(stream_of(&events))],
            _ => vec![Step::Send(next(&events))],
        }
    })
    .await
}

#[tokio::test]
async fn a_status_without_a_continuation_asks_elsewhere() {
    let bodies = [
        "",
        "null",
        "data: [DONE]\n\n",
        "data: {}\n\ndata: [DONE]\n\n",
    ];
    for temperature in [0, 1] {
        let request = request(CHAT, &json!({"temperature": temperature}));
        let whole = unbroken(CHAT, &request, ContinuationMode::Exact).await;
        let cut = length_of(CHAT, &request, 5);
        for text in bodies {
            let fakes = after_a_reset(cut, move |_| whole_stream(text), true).await;
            let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
            let received = answer(&gateway, CHAT, &request).await;
            assert_eq!(received, (whole.clone(), true), "{temperature} {text:?}");
            let record = gateway.record().await;
            assert_eq!(
                (record.outcome, record.attempts.len()),
                (Outcome::Ok, 3),
                "{text:?}"
            );
            let fakes = after_a_reset(cut, move |_| whole_stream(text), false).await;
            let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
            let (received, is_whole) = answer(&gateway, CHAT, &request).await;
            assert!(
                !is_whole && whole.starts_with(&received),
                "{text:?} {received}"
            );
            assert_eq!(
                gateway.record().await.outcome,
                Outcome::Truncated,
                "{text:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_early_end_is_no_second_crash() {
    let request = request(CHAT, &json!({}));
    let whole = unbroken(CHAT, &request, ContinuationMode::Exact).await;
    let early = |events: &[String]| stream_of(&events[..4]);
    let fakes = after_a_reset(length_of(CHAT, &request, 4), early, true).await;
    let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
    assert_eq!(
        answer(&gateway, CHAT, &request).await,
        (whole.clone(), true)
    );
    let record = gateway.record().await;
    let failures: Vec<_> = record
        .attempts
        .iter()
        .map(|attempt| attempt.failure)
        .collect();
    assert_eq!(failures, [Some("connection_reset"), Some("empty"), None]);
    let fakes = after_a_reset(length_of(CHAT, &request, 4), early, false).await;
    let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
    let (received, is_whole) = answer(&gateway, CHAT, &request).await;
    assert!(!is_whole && whole.starts_with(&received), "{received}");
}

#[tokio::test]
async fn two_crashes_or_a_lone_backend_end_continuation() {
    let request = request(CHAT, &json!({}));
    let start = || ScriptedBackend::start(|seen| vec![begin(&events(seen, "a")[..4]), Step::Close]);
    let fakes = [start().await, start().await, start().await];
    let refused = async |fakes: &[ScriptedBackend]| {
        let gateway = start_before(fakes, setup(ContinuationMode::Exact)).await;
        assert!(!body(&gateway.post(CHAT, &request).await).1);
        let record = gateway.record().await;
        (
            Continuations::of(&record).refusal,
            Continuations::of(&record).begun.len(),
            record.attempts.len(),
        )
    };
    assert_eq!(
        refused(&fakes).await,
        (Some(ContinuationRefusal::PoisonRequest), 1, 2)
    );
    assert_eq!(
        refused(&fakes[..1]).await,
        (Some(ContinuationRefusal::NoOtherBackend), 0, 1)
    );
    let retry = RetrySettings {
        attempts: 0,
        ..RetrySettings::default()
    };
    let gateway = start_before(
        &fakes,
        Setup {
            retry,
            ..setup(ContinuationMode::Exact)
        },
    )
    .await;
    assert!(!body(&gateway.post(CHAT, &request).await).1);
    let refusal = Continuations::of(&gateway.record().await).refusal;
    assert_eq!(refusal, Some(ContinuationRefusal::MaxAttempts));
}

#[tokio::test]
async fn an_error_event_prevents_continuation() {
    let fakes = ScriptedBackend::two(|number, index, seen| {
        let events = events(seen, NAMES[index]);
        vec![match number {
            0 => Step::Close,
            1 => Step::Send(stream_of(&[&*events[0], DEAD, "[DONE]"])),
            _ => Step::Send(stream_of(&events)),
        }]
    })
    .await;
    let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
    let (received, _) = answer(&gateway, CHAT, &request(CHAT, &json!({}))).await;
    assert!(
        received.trim_end().ends_with("data: [DONE]") && received.contains(DEAD),
        "{received}"
    );
    assert_eq!(received.matches("data: ").count(), 3, "{received}");
    let record = gateway.record().await;
    assert_eq!(
        Continuations::of(&record).refusal,
        Some(ContinuationRefusal::NoOtherBackend)
    );
    assert!(Continuations::of(&record).begun.is_empty());
}

#[tokio::test]
async fn a_models_setting_overrides_the_general_one() {
    let request = request(CHAT, &json!({}));
    let fakes = backends(length_of(CHAT, &request, 4), Break::Close).await;
    let policy = RoutePolicy {
        continuation: Some(ContinuationMode::Text),
        ..RoutePolicy::default()
    };
    let models = vec![ModelConfig {
        name: "tiny".into(),
        policy,
        ..ModelConfig::default()
    }];
    let gateway = start_before(
        &fakes,
        Setup {
            models,
            ..setup(ContinuationMode::Off)
        },
    )
    .await;
    assert!(body(&gateway.post(CHAT, &request).await).1);
    let bodies: Vec<Seen> = fakes.iter().flat_map(ScriptedBackend::seen).collect();
    let continues =
        |seen: &&Seen| String::from_utf8_lossy(&seen.body).contains("continue_final_message");
    assert_eq!(bodies.iter().filter(continues).count(), 1);
}

#[tokio::test]
async fn a_drain_with_migrate_moves_streams() {
    let request = request(CHAT, &json!({}));
    let fakes = backends(length_of(CHAT, &request, 5), Break::Hang).await;
    let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
    let mut client = gateway.begin(CHAT, &request).await;
    let mut received = read_until(&mut client, "w3").await;
    let (from, to) = if fakes[0].seen().is_empty() {
        (1, 0)
    } else {
        (0, 1)
    };
    let name = gateway.pool.backends()[from]
        .identity
        .id
        .as_str()
        .to_owned();
    let drained = gateway
        .change(&format!("/-/drain?backend={name}&migrate=true"))
        .await;
    let drained = String::from_utf8_lossy(&drained);
    assert!(drained.contains("\"migrating\":1"), "{drained}");
    received.extend(read_rest(client).await);
    assert!(body(&received).1);
    fakes[from].closed().await;
    assert_eq!(fakes[to].seen().len(), 1);
    let record = gateway.record().await;
    assert_eq!(
        Continuations::of(&record).begun[0].cause,
        InterruptionCause::Migrated
    );
    assert_eq!(
        (record.attempts[0].failure, record.outcome),
        (None, Outcome::Ok)
    );
    assert!(gateway.pool.backends()[from].load.in_flight() == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_removed_backend_continue() {
    let request = request(CHAT, &json!({}));
    let fakes = backends(length_of(CHAT, &request, 5), Break::Hang).await;
    let (port, file) = (
        Port::reserve(),
        folder("removed-backend").join("gateway.yaml"),
    );
    let write = |fakes: &[ScriptedBackend]| {
        let addrs: Vec<_> = fakes.iter().map(|fake| fake.addr).collect();
        let list = listed(&addrs);
        port.configure(
            &file,
            &format!("streams: {{ continuation: exact }}\n{list}"),
        );
    };
    write(&fakes);
    let gateway = GatewayProcess::start(&file).await;
    let mut client = send_to(port.addr, post(CHAT, &request)).await;
    let mut received = read_until(&mut client, "w3").await;
    let kept = usize::from(!fakes[0].seen().is_empty());
    write(&fakes[kept..=kept]);
    gateway.reload().await;
    received.extend(read_rest(client).await);
    let (text, is_whole) = body(&received);
    let text = String::from_utf8(text).unwrap();
    assert!(
        is_whole && (0..ANSWER).all(|word| text.matches(&format!("w{word} ")).count() == 1),
        "{text}"
    );
}

#[tokio::test]
async fn other_streams_stay_at_a_drained_backend() {
    let request = request(CHAT, &json!({}));
    let script = |seen: &Seen| {
        let events = events(seen, "a");
        paused(&events[..5], &events[5..])
    };
    let (fake, gateway) = gateway_scripted_with(setup(ContinuationMode::Exact), script).await;
    let mut client = gateway.begin(CHAT, &request).await;
    let mut received = read_until(&mut client, "w3").await;
    let name = gateway.pool.backends()[0].identity.id.as_str().to_owned();
    gateway
        .change(&format!("/-/drain?backend={name}&migrate=true"))
        .await;
    fake.go();
    received.extend(read_rest(client).await);
    assert!(body(&received).1);
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.attempts.len()), (Outcome::Ok, 1));
    assert_eq!(
        Continuations::of(&record).refusal,
        Some(ContinuationRefusal::NoOtherBackend)
    );
}

#[tokio::test]
async fn a_lost_backends_silent_stream_continues() {
    let request = request(CHAT, &json!({}));
    let whole = unbroken(CHAT, &request, ContinuationMode::Exact).await;
    let fakes = backends(length_of(CHAT, &request, 5), Break::Hang).await;
    let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
    let mut client = gateway.begin(CHAT, &request).await;
    let mut received = read_until(&mut client, "w3").await;
    let from = usize::from(fakes[0].seen().is_empty());
    fakes[from].set_healthy(false);
    gateway.pool.backends()[from]
        .health
        .wait_declared_down()
        .await;
    advance_time(Duration::from_secs(6)).await;
    received.extend(read_rest(client).await);
    let (text, is_whole) = body(&received);
    assert!(is_whole);
    assert_eq!(String::from_utf8(text).unwrap(), whole);
    let record = gateway.record().await;
    assert_eq!(
        Continuations::of(&record).begun[0].cause,
        InterruptionCause::BackendDown
    );
    assert_eq!(record.attempts[0].failure, Some("backend_down"));
}

/// The metrics page of an engine with this number of waiting requests.
fn engine_with_waiting(waiting: u32) -> Page {
    Page::of(&format!(
        "vllm:num_requests_running 200\nvllm:num_requests_waiting {waiting}\n\
         vllm:kv_cache_usage_perc 0.5\n"
    ))
}

#[tokio::test]
async fn a_broken_stream_waits_for_capacity() {
    let request = request(CHAT, &json!({}));
    let whole = unbroken(CHAT, &request, ContinuationMode::Exact).await;
    for is_full in [true, false] {
        let fakes = ScriptedBackend::two(|number, index, seen| {
            let events = events(seen, NAMES[index]);
            match number {
                0 => vec![begin(&events[..5]), Step::Wait, Step::Reset],
                _ => vec![Step::Send(stream_of(&events))],
            }
        })
        .await;
        let wait = Some(Duration::from_secs(30));
        let admission = AdmissionConfig {
            max_backend_wait: wait,
            ..AdmissionConfig::default()
        };
        let admission = Some(admission_settings(&admission));
        let setup = Setup {
            admission,
            ..setup(ContinuationMode::Exact)
        };
        let gateway = start_before(&fakes, setup).await;
        let mut client = gateway.begin(CHAT, &request).await;
        let mut received = read_until(&mut client, "w3").await;
        let from = usize::from(fakes[0].seen().is_empty());
        let other = &fakes[1 - from];
        let state = || gateway.pool.backends()[1 - from].health.state();
        let waiting = || state().sample.and_then(|sample| sample.load.waiting);
        if is_full {
            other.set_metrics(Some(engine_with_waiting(40)));
            wait_until!(waiting() == Some(40.0));
        } else {
            other.set_healthy(false);
            gateway.pool.backends()[1 - from].mark_down("refused");
            wait_until!(state().health == Health::Down);
        }
        fakes[from].go();
        until_waiting(&gateway, 1).await;
        assert!(other.seen().is_empty());
        other.set_metrics(Some(engine_with_waiting(0)));
        other.set_healthy(true);
        received.extend(read_rest(client).await);
        let (text, is_whole) = body(&received);
        assert!(is_whole, "{is_full}");
        let text = String::from_utf8(text).unwrap().replace(NAMES[1], NAMES[0]);
        assert_eq!(text.replace("\"created\":4", "\"created\":5"), whole);
    }
}

#[tokio::test]
async fn a_busy_backend_is_asked_again() {
    let request = request(CHAT, &json!({}));
    let fakes = ScriptedBackend::two(|number, index, seen| {
        let events = events(seen, NAMES[index]);
        match number {
            0 => vec![begin(&events[..5]), Step::Reset],
            1 => vec![Step::Send(json_response("503 Service Unavailable", "{}"))],
            _ => vec![Step::Send(stream_of(&events))],
        }
    })
    .await;
    let gateway = start_before(&fakes, setup(ContinuationMode::Exact)).await;
    assert!(answer(&gateway, CHAT, &request).await.1);
    let record = gateway.record().await;
    let failures: Vec<_> = record
        .attempts
        .iter()
        .map(|attempt| attempt.failure)
        .collect();
    assert_eq!(failures, [Some("connection_reset"), Some("busy"), None]);
}

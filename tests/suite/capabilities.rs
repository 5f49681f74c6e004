//! Backends that serve the same model but differ in the requests that they can serve: in context length or in
//! the media that they accept, or because their engine is paused, asleep, scaling or retired.

use crate::restart::{model, start_simulator};
use crate::support::scripted_backend::{Page, ScriptedBackend, Step, VLLM, json};
use crate::support::test_gateway::{
    ASK, CHAT, Running, Setup, WHOLE, body_json, get, start, start_before, start_with, status,
};
use serde_json::Value;
use std::net::SocketAddr;
use tokenweir_request::record::RequestRecord;
use tokenweir_routing::resilience::Availability;
use tokenweir_routing::{Policy, PolicyKind};
use tokenweir_sim::SimulatorSettings;

/// vLLM's response to a prompt of 9,000 bytes if the context has 2,048 tokens.
const TOO_LONG: &str = r#"{"error":{"message":"This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=2049)","type":"BadRequestError","param":"input_tokens","code":400}}"#;

pub(crate) fn round_robin() -> Setup {
    let policy = Policy {
        kind: PolicyKind::RoundRobin,
        ..Policy::default()
    };
    Setup {
        policy,
        ..Setup::default()
    }
}

/// Starts a backend that answers every inference request with [`WHOLE`].
async fn serving() -> ScriptedBackend {
    ScriptedBackend::answering(json("200 OK", WHOLE)).await
}

async fn backend_status(gateway: &Running, index: usize) -> Value {
    gateway.document("/status").await["backends"][index].clone()
}

/// Whether the routing decision of a request excludes a backend for this reason.
pub(crate) fn is_excluded(record: &RequestRecord, reason: &str) -> bool {
    let decision = record.decision.as_ref().unwrap();
    decision.excluded_backends().any(|(_, why)| why == reason)
}

/// Sets the pause and sleep states that a scripted vLLM reports. The gateway asks for the pause state only
/// because the metrics page has a sleep state, which shows developer mode.
fn set_rest(fake: &ScriptedBackend, is_paused: bool, is_asleep: bool) {
    let awake = u8::from(!is_asleep);
    let sleep_state =
        format!("vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {awake}\n");
    fake.set_metrics(Some(Page::of(&(VLLM.metrics.to_owned() + &sleep_state))));
    fake.set_page(
        "/is_paused",
        "200 OK",
        &format!(r#"{{"is_paused":{is_paused}}}"#),
    );
}

fn chat(model: &str, prompt_bytes: usize, max_tokens: u32) -> String {
    let prompt = "All work and no play. ".repeat(prompt_bytes / 22 + 1);
    serde_json::json!({ "model": model, "max_tokens": max_tokens,
            "messages": [{ "role": "user", "content": prompt[..prompt_bytes] }] })
    .to_string()
}

async fn simulated(max_len: u32) -> SocketAddr {
    let settings = SimulatorSettings {
        backends: 1,
        max_len,
        blocks: 4_096,
        time_scale: "1000".parse().unwrap(),
        ..SimulatorSettings::default()
    };
    start_simulator(settings).await[0]
}

#[tokio::test]
async fn requests_get_backends_with_enough_context() {
    let addrs = [simulated(2_048).await, simulated(16_384).await];
    let gateway = start_with(&addrs, round_robin()).await;
    let small = addrs[0].to_string();
    let (mut refused, mut at_small, mut excluded) = (0, 0, 0);
    let mut random = fastrand::Rng::with_seed(7);
    for number in 0..300 {
        // A token has 4 bytes in the simulator. The prompts have up to 14,000 tokens.
        let tokens: usize = if number % 3 == 0 {
            random.usize(2_100..14_000)
        } else {
            random.usize(5..1_900)
        };
        let max_tokens = if number % 10 == 1 { 1_990 } else { 8 };
        let answer = gateway
            .post(CHAT, &chat(&model(), tokens * 4, max_tokens))
            .await;
        assert_eq!(
            status(&answer),
            200,
            "{number}: {tokens} tokens, {:?}",
            body_json(&answer)
        );
        let record = gateway.record().await;
        excluded += u32::from(is_excluded(
            &record,
            "its context is too short for the request",
        ));
        let attempts = &record.attempts;
        let is_small = |backend: &str| backend == small;
        refused += attempts.iter().filter(|it| it.status == Some(400)).count();
        at_small += usize::from(attempts.iter().any(|it| is_small(it.backend.as_str())));
        let fits_small = tokens + max_tokens as usize + 100 < 2_048;
        let was_at_small = is_small(attempts.last().unwrap().backend.as_str());
        assert!(fits_small || !was_at_small, "{number}: {tokens} tokens");
    }
    assert!(
        refused <= 1,
        "{refused} requests were too long for their backend"
    );
    assert!(
        at_small > 60,
        "only {at_small} requests used the smaller backend"
    );
    assert!(
        excluded >= 99,
        "{excluded} decisions name the short context"
    );
}

/// Returns the number of tokens that the gateway estimated for the prompt of a request.
fn estimated_tokens(record: &RequestRecord) -> f64 {
    record.selected_candidate().unwrap().candidate.prompt
}

#[tokio::test]
async fn image_bytes_do_not_change_text_estimates() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":1100,"completion_tokens":1}}"#;
    let fake = ScriptedBackend::answering(json("200 OK", usage)).await;
    let gateway = start(&[fake.addr]).await;
    let image = "QUJD".repeat(1 << 16);
    let with_image = serde_json::json!({ "model": "tiny", "messages": [{ "role": "user", "content": [
        { "type": "text", "text": "What is this?" },
        { "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{image}") } }] }] });
    for _ in 0..3 {
        let answer = gateway.post(CHAT, &with_image.to_string()).await;
        assert_eq!(status(&answer), 200);
        let tokens = estimated_tokens(&gateway.record().await);
        assert!((256.0..356.0).contains(&tokens), "{tokens}");
    }
    gateway.post(CHAT, &chat("tiny", 4_000, 8)).await;
    let tokens = estimated_tokens(&gateway.record().await);
    assert!((900.0..1_200.0).contains(&tokens), "{tokens}");
}

/// Starts a backend whose model has this context length, and that rejects every request as too long.
async fn refusing(length: u32) -> ScriptedBackend {
    let text = TOO_LONG.replace("2048", &length.to_string());
    let fake = ScriptedBackend::answering(json("400 Bad Request", &text)).await;
    fake.set_context("tiny", length);
    fake
}

#[tokio::test]
async fn too_long_requests_get_the_longest_contexts_error() {
    let fakes = [
        refusing(2_048).await,
        refusing(8_192).await,
        refusing(4_096).await,
    ];
    let gateway = start_before(&fakes, round_robin()).await;
    for _ in 0..4 {
        let answer = gateway.post(CHAT, &chat("tiny", 9_000, 8)).await;
        assert_eq!(status(&answer), 400);
        assert!(
            body_json(&answer)["error"]["message"]
                .as_str()
                .unwrap()
                .contains("8192")
        );
        let record = gateway.record().await;
        assert!(
            record.attempts.len() <= 2,
            "one move at most: {:?}",
            record.attempts
        );
        assert_eq!(record.not_retried, None, "the client is the cause");
    }
    let huge = gateway.post(CHAT, &chat("tiny", 900_000, 8)).await;
    assert!(
        body_json(&huge)["error"]["message"]
            .as_str()
            .unwrap()
            .contains("8192")
    );
    assert_eq!(
        gateway.record().await.attempts.len(),
        1,
        "no attempt at a shorter one"
    );
    for fake in gateway.pool.backends().iter() {
        assert_eq!(fake.health.breaker.ejections(), 0);
    }
}

#[tokio::test]
async fn the_model_list_survives_missing_backends() {
    let fakes = [serving().await, serving().await];
    fakes[0].set_context("tiny", 2_048);
    fakes[1].set_context("tiny", 16_384);
    for fake in &fakes {
        set_rest(fake, false, false);
    }
    let gateway = start_before(&fakes, Setup::default()).await;
    let listed = async || body_json(&gateway.raw(get("/v1/models")).await);
    let all = listed().await;
    assert_eq!(all["data"][0]["max_model_len"], 16_384);
    assert_eq!(all["data"][0]["owned_by"], "vllm", "the other members stay");
    assert_eq!(
        all["model_states"],
        serde_json::json!({ "tiny": "available" })
    );
    assert_eq!(
        backend_status(&gateway, 0).await["max_model_len"],
        serde_json::json!({ "tiny": 2_048 })
    );
    set_rest(&fakes[1], true, false);
    until_state(&gateway, 1, Availability::Paused).await;
    assert_eq!(listed().await["data"], all["data"]);
    set_rest(&fakes[0], true, false);
    until_state(&gateway, 0, Availability::Paused).await;
    let resting = listed().await;
    assert_eq!(resting["data"], all["data"]);
    assert_eq!(
        resting["model_states"],
        serde_json::json!({ "tiny": "paused" })
    );
    assert_eq!(resting["unavailable_models"], serde_json::json!(["tiny"]));
    assert_eq!(
        body_json(&gateway.raw(get("/v1/models/tiny")).await),
        all["data"][0]
    );
}

/// Waits until the backend with this index has this state. Meanwhile it makes the health checker read the
/// models of the backend again and again.
async fn until_state(gateway: &Running, index: usize, state: Availability) {
    let now = tokenweir_protocol::clock::now;
    wait_until!({
        let backend = &gateway.pool.backends()[index];
        backend.health.mark_models_stale();
        backend.availability(now()) == state
    });
}

#[tokio::test]
async fn images_avoid_engines_that_refuse_them() {
    // The first text is vLLM's. The second is a text that the gateway does not know, as another engine could
    // send it.
    for message in [
        "tiny is not a multimodal model",
        "Image input is off: see --help",
    ] {
        let sees = serving().await;
        let reads = ScriptedBackend::start(move |seen| {
            let refused = format!(r#"{{"error":{{"message":"{message}","code":400}}}}"#);
            let is_refused = String::from_utf8_lossy(&seen.body).contains("image_url");
            let (line, text) = if is_refused {
                ("400 Bad Request", &*refused)
            } else {
                ("200 OK", WHOLE)
            };
            vec![Step::Send(json(line, text))]
        })
        .await;
        let gateway = start_with(&[sees.addr, reads.addr], round_robin()).await;
        let url = format!("data:image/png;base64,{}", "QUJD".repeat(4_000));
        let content = serde_json::json!([{ "type": "image_url", "image_url": { "url": url } }]);
        let message = serde_json::json!([{ "role": "user", "content": content }]);
        let ask = serde_json::json!({ "model": "tiny", "messages": message }).to_string();
        for _ in 0..10 {
            for body in [&*ask, &*ask, ASK] {
                assert_eq!(status(&gateway.post(CHAT, body).await), 200);
            }
        }
        let seen = reads.seen();
        let refused = seen.iter().filter(|seen| seen.body.len() > 9_000).count();
        assert!(
            refused == 1 && seen.len() >= 5,
            "{refused} of {}",
            seen.len()
        );
        assert_eq!(
            backend_status(&gateway, 1).await["unserved"],
            serde_json::json!(["media"])
        );
        let records = gateway.take_records().await;
        assert!(
            records
                .iter()
                .any(|record| is_excluded(record, "it does not serve media"))
        );
    }
}

#[tokio::test]
async fn paused_or_retired_engines_get_no_request() {
    for (state, words) in [
        (Availability::Paused, "the engine is paused"),
        (Availability::Asleep, "the engine is asleep"),
        (Availability::Scaling, "it scales"),
        (Availability::Retired, "it was retired"),
    ] {
        let works = serving().await;
        let rests = serving().await;
        set_rest(&rests, false, false);
        let gateway = start_with(&[works.addr, rests.addr], round_robin()).await;
        let everywhere = |text: &str| {
            let answer = json(
                "503 Service Unavailable",
                &format!(r#"{{"error":"{text}"}}"#),
            );
            rests.set_metrics(Some(Page::Whole(answer)));
            rests.refuse_models("503 Service Unavailable");
        };
        match state {
            Availability::Paused => set_rest(&rests, true, false),
            Availability::Asleep => set_rest(&rests, true, true),
            Availability::Scaling => {
                everywhere("The model is currently scaling. Please try again later.");
            }
            _ => everywhere("This data-parallel rank has been retired and is awaiting shutdown."),
        }
        until_state(&gateway, 1, state).await;
        rests.take_received();
        for _ in 0..10 {
            assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
            assert!(is_excluded(&gateway.record().await, state.as_str()));
        }
        assert_eq!(rests.seen().len(), 0, "{state:?}");
        let shown = backend_status(&gateway, 1).await;
        assert_eq!(shown["state"], state.as_str());
        assert_eq!(
            shown["asleep"] == true,
            state == Availability::Asleep,
            "{shown}"
        );
        assert!(shown["reason"].as_str().unwrap().contains(words), "{shown}");
        rests.set_metrics(None);
        rests.set_models(&["tiny"]);
        set_rest(&rests, false, false);
        until_state(&gateway, 1, Availability::Available).await;
    }
}

#[tokio::test]
async fn the_urls_path_precedes_all_paths() {
    let fake = serving().await;
    let gateway = start_with(
        &[fake.addr],
        Setup {
            prefix: "/engine-1",
            ..Setup::default()
        },
    )
    .await;
    assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
    assert!(
        fake.seen()[0]
            .head
            .starts_with("POST /engine-1/v1/chat/completions HTTP/1.1\r\n")
    );
    assert!(
        backend_status(&gateway, 0).await["url"]
            .as_str()
            .unwrap()
            .ends_with("/engine-1")
    );
}

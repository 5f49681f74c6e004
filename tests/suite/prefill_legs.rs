//! Prefill and decode of a request on different backends: the protocol of the two requests that the gateway
//! sends (the prefill leg and the decode leg). A failure of the prefill leg must neither fail the client's
//! request nor make an engine read the same KV blocks twice.

use crate::support::recording::header;
use crate::support::scripted_backend::{
    self, FINISH, ScriptedBackend, Seen, Step, WORD, stream_of,
};
use crate::support::test_gateway::{CHAT, Running, Setup, body, read_rest, start_before, status};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokenweir_engine::role::Role;
use tokenweir_gateway::backend::Backend;
use tokenweir_gateway::telemetry::otel::TracingSettings;
use tokenweir_prefill_legs::{PrefillNote, PrefillSkip};
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::Usage;
use tokenweir_request::record::{RequestPhase, RequestPhases, RequestRecord};
use tokenweir_routing::PromptFingerprint;

const EVENTS: [&str; 3] = [WORD, FINISH, "[DONE]"];

/// The KV blocks that prefill engines keep until a decode engine has read them.
#[derive(Default)]
struct Blocks {
    next: AtomicUsize,
    kept: Mutex<BTreeSet<u64>>,
}

/// The steps of an engine with a fault. `None`: the engine has no fault for this request.
type Fault = Option<Vec<Step>>;

impl Blocks {
    /// Starts an engine that can send KV blocks to other engines. `fault` decides from the kind of a request,
    /// such as `prefill` or `decode`, whether the engine fails.
    async fn engine(
        self: &Arc<Self>,
        fault: impl Fn(&str) -> Fault + Send + Sync + 'static,
    ) -> ScriptedBackend {
        let blocks = self.clone();
        ScriptedBackend::start(move |seen| {
            let kind = kind(seen);
            if kind == "decode" {
                let id = request(seen)["kv_transfer_params"]["remote_request_id"]
                    .as_u64()
                    .unwrap();
                assert!(
                    blocks.kept.lock().unwrap().remove(&id),
                    "blocks are read once"
                );
            }
            fault(kind).unwrap_or_else(|| blocks.answer(kind))
        })
        .await
    }

    fn answer(&self, kind: &str) -> Vec<Step> {
        if kind != "prefill" {
            return vec![Step::Send(stream_of(&EVENTS))];
        }
        let id = self.next.fetch_add(1, Ordering::SeqCst) as u64;
        self.kept.lock().unwrap().insert(id);
        let answer = json!({
            "id": "c", "object": "chat.completion", "model": "tiny",
            "usage": {"prompt_tokens": 5_000, "completion_tokens": 1},
            "kv_transfer_params": {
                "do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1, 2]],
                "remote_request_id": id, "remote_host": "10.0.0.1", "remote_port": 5600,
            },
        });
        vec![Step::Send(scripted_backend::json(
            "200 OK",
            &answer.to_string(),
        ))]
    }

    fn kept(&self) -> usize {
        self.kept.lock().unwrap().len()
    }
}

fn request(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.body).unwrap()
}

fn kind(seen: &Seen) -> &'static str {
    let parameters = &request(seen)["kv_transfer_params"];
    match (
        &parameters["do_remote_decode"],
        &parameters["do_remote_prefill"],
    ) {
        (Value::Bool(true), _) => "prefill",
        (_, Value::Bool(true)) => "decode",
        _ => "whole",
    }
}

fn kinds(backend: &ScriptedBackend) -> Vec<&'static str> {
    backend.seen().iter().map(kind).collect()
}

fn healthy(_: &str) -> Fault {
    None
}

fn error(status: &str) -> Vec<Step> {
    vec![Step::Send(scripted_backend::json(
        status,
        r#"{"error":{"message":"broken"}}"#,
    ))]
}

async fn start(backends: &[&ScriptedBackend], roles: &'static [Role]) -> Running {
    start_with_setup(
        backends,
        Setup {
            roles,
            ..Setup::default()
        },
    )
    .await
}

async fn start_with_setup(backends: &[&ScriptedBackend], setup: Setup) -> Running {
    let propagation = Some(TracingSettings::default().propagation);
    start_before(
        backends,
        Setup {
            propagation,
            ..setup
        },
    )
    .await
}

/// Records measurements in the load estimate of the backend, so that the gateway predicts `seconds` for a
/// prompt of the length that [`chat`] sends.
fn teach(backend: &Backend, seconds: f64) {
    let (load, now) = (&backend.load.estimator, clock::now());
    let text = vec![b'x'; 20_000];
    for seed in 0..30_u32 {
        let prompt = PromptFingerprint::new(u64::from(seed), [&text[..]].into_iter());
        let candidate = load.candidate(&prompt, now);
        let mut reservation = load.reserve(&candidate, &prompt, true, now);
        load.first_output(&mut reservation, now + Duration::from_secs_f64(seconds));
        let counts = Usage {
            output: Some(10),
            ..Usage::default()
        };
        load.answered(&mut reservation, &counts);
        load.release(reservation, now + Duration::from_secs_f64(seconds));
    }
}

fn chat(name: usize) -> String {
    let text = format!("{name} {}", "word ".repeat(4_000));
    let messages = json!([{"role": "user", "content": text}]);
    json!({"model": "tiny", "messages": messages, "stream": true, "max_tokens": 9}).to_string()
}

/// Sends a request and asserts that it succeeds. Returns the record of the request.
async fn answered(gateway: &Running, name: usize) -> RequestRecord {
    let answer = gateway.post(CHAT, &chat(name)).await;
    let (text, is_whole) = body(&answer);
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(
        status(&answer) == 200 && is_whole && text.contains("Hi"),
        "{text}"
    );
    assert!(!text.contains("kv_transfer_params"), "{text}");
    gateway.record().await
}

fn note(record: &RequestRecord) -> PrefillNote {
    *record.notes.get().unwrap()
}

fn skipped(record: &RequestRecord) -> Option<PrefillSkip> {
    note(record).skipped
}

fn is_unloaded(gateway: &Running) -> bool {
    let loads = gateway.pool.backends();
    let loads = loads
        .iter()
        .map(|backend| backend.load.estimator.local_load());
    loads
        .into_iter()
        .all(|load| (load.in_flight, load.pending, load.backlog) == (0, 0, 0))
}

#[tokio::test]
async fn the_decode_backend_reads_computed_blocks() {
    let blocks = Arc::<Blocks>::default();
    let (prefill, decode) = (blocks.engine(healthy).await, blocks.engine(healthy).await);
    let gateway = start(&[&prefill, &decode], &[Role::Prefill, Role::Decode]).await;
    teach(&gateway.pool.backends()[1], 20.0);
    let record = answered(&gateway, 1).await;
    assert_eq!(
        (kinds(&prefill), kinds(&decode)),
        (vec!["prefill"], vec!["decode"])
    );
    assert_eq!(blocks.kept(), 0);
    let [leg, decoded] = [&prefill, &decode].map(|backend| backend.seen().remove(0));
    let (leg_body, decode_body) = (request(&leg), request(&decoded));
    assert_eq!(
        (&leg_body["max_tokens"], &leg_body["stream"]),
        (&json!(1), &json!(false))
    );
    assert_eq!(leg_body["messages"], decode_body["messages"]);
    assert_eq!(
        (&decode_body["max_tokens"], &decode_body["stream"]),
        (&json!(9), &json!(true))
    );
    let [id, parents] = ["x-request-id", "traceparent"]
        .map(|name| [&leg, &decoded].map(|seen| header(&seen.head, name).unwrap()));
    assert_eq!(id[0], id[1]);
    assert!(
        parents[0] != parents[1] && parents[0][..35] == parents[1][..35],
        "{parents:?}"
    );
    assert!(record.has_remote_prompt && skipped(&record).is_none());
    assert_eq!(record.attempts_apart.len(), 1);
    assert_eq!(record.attempts.len(), 1);
    let phases = RequestPhases::from_record(&record);
    assert!(
        phases
            .get(RequestPhase::RemotePrefill)
            .is_some_and(|phase| !phase.took.is_zero())
    );
    let id = record.request_id.as_str();
    let shown = &gateway.document(&format!("/decisions/{id}")).await["prefill_legs"];
    assert_eq!(
        (&shown["used"], &shown["sent"][0]["status"]),
        (&json!(true), &json!(200))
    );
    gateway
        .assert_value("tokenweir_prefill_legs_total{result=\"used\"}", 1.0)
        .await;
    wait_until!(is_unloaded(&gateway));
}

#[tokio::test]
async fn legs_that_are_not_faster_are_not_sent() {
    let blocks = Arc::<Blocks>::default();
    let (prefill, decode) = (blocks.engine(healthy).await, blocks.engine(healthy).await);
    let gateway = start(&[&prefill, &decode], &[Role::Prefill, Role::Decode]).await;
    let record = answered(&gateway, 1).await;
    assert_eq!(skipped(&record), Some(PrefillSkip::NotFaster));
    assert_eq!((kinds(&prefill), kinds(&decode)), (vec![], vec!["whole"]));
    let series = "tokenweir_prefill_legs_skipped_total{reason=\"not_faster\"}";
    gateway.assert_value(series, 1.0).await;
    teach(&gateway.pool.backends()[1], 20.0);
    let predicted = [answered(&gateway, 2).await, answered(&gateway, 2).await];
    let [first, cached] = predicted.map(|record| note(&record).predicted.unwrap().alone);
    assert!(
        cached < first / 10.0,
        "{cached} s after {first} s: the prefix is cached there"
    );
}

#[tokio::test]
async fn a_failed_leg_is_repeated_or_left_out() {
    let blocks = Arc::<Blocks>::default();
    let broken = blocks
        .engine(|_| Some(error("500 Internal Server Error")))
        .await;
    let (prefill, decode) = (blocks.engine(healthy).await, blocks.engine(healthy).await);
    let roles = &[Role::Prefill, Role::Prefill, Role::Decode];
    let gateway = start(&[&broken, &prefill, &decode], roles).await;
    teach(&gateway.pool.backends()[2], 20.0);
    // Of the two prefill backends, the gateway prefers the one with the fault, because the other one is
    // slower.
    teach(&gateway.pool.backends()[0], 0.1);
    teach(&gateway.pool.backends()[1], 5.0);
    let record = answered(&gateway, 1).await;
    let failures: Vec<_> = record
        .attempts_apart
        .iter()
        .map(|leg| leg.failure)
        .collect();
    assert_eq!(
        (failures, record.has_remote_prompt),
        (vec![Some("server_error"), None], true)
    );
    assert_eq!(kinds(&decode), ["decode"]);

    let gateway = start(&[&broken, &decode], &[Role::Prefill, Role::Decode]).await;
    teach(&gateway.pool.backends()[1], 20.0);
    let record = answered(&gateway, 2).await;
    assert_eq!(skipped(&record), Some(PrefillSkip::Failed));
    assert_eq!(
        (kinds(&decode), blocks.kept()),
        (vec!["decode", "whole"], 0)
    );
    wait_until!(is_unloaded(&gateway));
}

#[tokio::test]
async fn a_backend_that_keeps_nothing_gets_no_legs() {
    let blocks = Arc::<Blocks>::default();
    let plain = ScriptedBackend::answering(scripted_backend::json(
        "200 OK",
        r#"{"id":"c","choices":[],"kv_transfer_params":null}"#,
    ));
    let (plain, decode) = (plain.await, blocks.engine(healthy).await);
    let gateway = start(&[&plain, &decode], &[Role::Prefill, Role::Decode]).await;
    teach(&gateway.pool.backends()[1], 20.0);
    let skips = [answered(&gateway, 1).await, answered(&gateway, 2).await];
    let skips = skips.each_ref().map(skipped);
    assert_eq!(
        skips,
        [Some(PrefillSkip::Failed), Some(PrefillSkip::NoBackend)]
    );
    assert_eq!(
        (kinds(&plain), kinds(&decode)),
        (vec!["prefill"], vec!["whole", "whole"])
    );
}

#[tokio::test]
async fn without_blocks_the_decode_backend_computes_the_prompt() {
    let blocks = Arc::<Blocks>::default();
    let prefill = blocks.engine(healthy).await;
    let fault = |kind: &str| (kind == "decode").then(|| error("500 Internal Server Error"));
    let decode = blocks.engine(fault).await;
    let gateway = start(&[&prefill, &decode], &[Role::Prefill, Role::Decode]).await;
    teach(&gateway.pool.backends()[1], 20.0);
    let record = answered(&gateway, 1).await;
    let failures: Vec<_> = record
        .attempts
        .iter()
        .map(|attempt| attempt.failure)
        .collect();
    assert_eq!(failures, [Some("transfer_failed"), None]);
    assert_eq!(
        (kinds(&prefill), kinds(&decode)),
        (vec!["prefill"], vec!["decode", "whole"])
    );
    assert_eq!(gateway.pool.backends()[1].health.breaker.ejections(), 0);
    wait_until!(is_unloaded(&gateway));
}

#[tokio::test]
async fn after_a_failure_only_unread_blocks_count() {
    let blocks = Arc::<Blocks>::default();
    let prefill = blocks.engine(healthy).await;
    let reset = |kind: &str| (kind == "decode").then(|| vec![Step::Reset]);
    let (resetting, decode) = (blocks.engine(reset).await, blocks.engine(healthy).await);
    let roles = &[Role::Prefill, Role::Decode, Role::Decode];
    // The next health check is an hour away. If a health check marked the backend as down, it would end the
    // running prefill leg, and the KV blocks of this leg would remain.
    let setup = Setup {
        roles,
        scrape_interval: Duration::from_hours(1),
        ..Setup::default()
    };
    let gateway = start_with_setup(&[&prefill, &resetting, &decode], setup).await;
    teach(&gateway.pool.backends()[1], 20.0);
    teach(&gateway.pool.backends()[2], 21.0);
    answered(&gateway, 1).await;
    assert_eq!(
        kinds(&prefill),
        ["prefill", "prefill"],
        "each decode leg reads its own blocks"
    );
    assert_eq!(
        (kinds(&resetting), kinds(&decode)),
        (vec!["decode"], vec!["decode"])
    );

    // The health check after the reset has ended, so the gateway does not notice that this backend ends now.
    wait_until!(resetting.looks()[0] > 1);
    drop(resetting);
    let record = answered(&gateway, 2).await;
    let failures: Vec<_> = record
        .attempts
        .iter()
        .map(|attempt| attempt.failure)
        .collect();
    if failures.len() > 1 {
        assert_eq!(failures, [Some("connect_error"), None]);
    }
    let legs = &record.attempts_apart;
    assert_eq!(
        (prefill.seen().len(), decode.seen().len(), blocks.kept()),
        (3, 2, 0),
        "{failures:?} {legs:?}"
    );
    assert!(record.has_remote_prompt);
}

#[tokio::test]
async fn blocks_of_a_lost_backend_are_not_reused() {
    let blocks = Arc::<Blocks>::default();
    let prefill = blocks.engine(healthy).await;
    let wait = |kind: &str| (kind == "decode").then(|| vec![Step::AwaitClose]);
    let silent = blocks.engine(wait).await;
    let decode = blocks.engine(healthy).await;
    let roles = &[Role::Prefill, Role::Decode, Role::Decode];
    let gateway = start(&[&prefill, &silent, &decode], roles).await;
    teach(&gateway.pool.backends()[1], 20.0);
    teach(&gateway.pool.backends()[2], 21.0);
    let client = gateway.begin(CHAT, &chat(1)).await;
    silent.until_received(1).await;
    silent.set_healthy(false);
    read_rest(client).await;
    assert_eq!(
        kinds(&prefill),
        ["prefill", "prefill"],
        "each decode leg reads its own blocks"
    );
    assert_eq!(
        (kinds(&silent), kinds(&decode)),
        (vec!["decode"], vec!["decode"])
    );
}

#[tokio::test]
async fn a_disconnect_ends_the_leg() {
    let blocks = Arc::<Blocks>::default();
    let prefill = blocks.engine(|_| Some(vec![Step::AwaitClose])).await;
    let decode = blocks.engine(healthy).await;
    let gateway = start(&[&prefill, &decode], &[Role::Prefill, Role::Decode]).await;
    teach(&gateway.pool.backends()[1], 20.0);
    let client = gateway.begin(CHAT, &chat(1)).await;
    prefill.until_received(1).await;
    drop(client);
    prefill.closed().await;
    let record = gateway.record().await;
    assert_eq!((record.attempts.len(), record.attempts_apart.len()), (0, 1));
    assert_eq!(decode.seen().len(), 0);
    wait_until!(is_unloaded(&gateway));
}

#[tokio::test]
async fn a_prefill_backend_serves_requests_only_if_alone() {
    let blocks = Arc::<Blocks>::default();
    let (prefill, decode) = (blocks.engine(healthy).await, blocks.engine(healthy).await);
    let gateway = start(&[&prefill, &decode], &[Role::Prefill, Role::Decode]).await;
    for name in 0..5 {
        answered(&gateway, name).await;
    }
    assert_eq!((prefill.seen().len(), decode.seen().len()), (0, 5));
    let id = { answered(&gateway, 5).await.request_id };
    let shown = gateway
        .document(&format!("/decisions/{}", id.as_str()))
        .await;
    assert_eq!(shown["excluded"][0]["reason"], "its role is prefill");
    let shown = gateway.document("/status").await;
    assert_eq!(shown["backends"][0]["role"], "prefill");
    drop(decode);
    answered(&gateway, 6).await;
    assert_eq!(kinds(&prefill), ["whole"]);
}

//! KV events of simulated engines. From them the gateway learns what the prefix caches contain. After an
//! engine restarts or resets its cache, the gateway must expect the new contents.

use crate::support::scripted_backend::{Page, ScriptedBackend, json as json_response};
use crate::support::simulated_fleet::Fleet;
use crate::support::test_gateway::{Setup, body_text, post, read_rest, send_to, start_with};
use serde_json::json;
use std::sync::Arc;
use tokenweir_gateway::backend::Backend;
use tokenweir_kv_event_routing::{BackendCache, KvEventsFacet, KvEventsSettings};
use tokenweir_request::record::{Outcome, RequestRecord};
use tokenweir_routing::CachedSource;
use tokenweir_sim::{PositiveNumber, Simulator, SimulatorSettings};

/// Number of tokens in a KV block of the simulated engine.
const BLOCK_TOKENS: u32 = 16;

/// Builds the settings of a simulated engine that runs fast, publishes KV events, and has a KV cache for this
/// number of tokens.
fn engine(cache_tokens: u32) -> SimulatorSettings {
    SimulatorSettings {
        backends: 1,
        block_size: BLOCK_TOKENS,
        blocks: cache_tokens / BLOCK_TOKENS,
        time_scale: PositiveNumber::new(100.0).unwrap(),
        kv_events_port: Some(0),
        ..SimulatorSettings::default()
    }
}

/// Builds gateway settings that use the KV events of each engine that publishes them, as by default.
fn using_offered_events() -> Setup {
    Setup {
        kv_events: KvEventsSettings::default(),
        ..Setup::default()
    }
}

/// The prefix cache of the backend as its KV events show it.
fn cache_of(backend: &Backend) -> Option<&Arc<BackendCache>> {
    backend.facets.get::<KvEventsFacet>()?.cache()
}

async fn start(cache_tokens: u32) -> Fleet {
    let fleet = Fleet::simulate(engine(cache_tokens), using_offered_events()).await;
    wait_until!(
        fleet.gateway.pool.backends().iter().all(|backend| {
            cache_of(backend).is_some_and(|cache| cache.status().state == "exact")
        })
    );
    fleet
}

/// Sends a question after a system prompt of `tokens` tokens. The letter `system` selects the system prompt.
/// Returns the record of the request.
async fn ask(fleet: &Fleet, system: char, tokens: usize, question: &str) -> RequestRecord {
    let system = system.to_string().repeat(tokens * 4);
    let body = json!({
        "model": "sim-model",
        "max_tokens": 2,
        "messages": [
            { "role": "system", "content": system },
            { "role": "user", "content": question },
        ],
    });
    fleet
        .gateway
        .raw(post("/v1/chat/completions", &body.to_string()))
        .await;
    let record = fleet.gateway.record().await;
    assert_eq!(record.outcome, Outcome::Ok);
    record
}

/// Returns two numbers of prompt tokens: those that the gateway expected in the cache, and those that the
/// engine found there. The first is `None` if the gateway did not base its expectation on KV events.
fn expected_and_found(record: &RequestRecord) -> (Option<u64>, u64) {
    let candidate = record.selected_candidate().unwrap().candidate;
    let is_exact = candidate.cached_source == CachedSource::Exact;
    (
        is_exact.then_some(candidate.cached as u64),
        record.observed.usage.cached.unwrap(),
    )
}

/// Sends requests until the gateway expects more than 0 cached tokens because of KV events. Returns that
/// number of tokens. Each expectation from KV events must be right.
async fn ask_until_exact(fleet: &Fleet, system: char) -> u64 {
    wait_for!({
        let record = ask(fleet, system, 1_000, "question").await;
        let (expected, found) = expected_and_found(&record);
        assert!(expected.is_none_or(|expected| expected.abs_diff(found) <= BLOCK_TOKENS.into()));
        expected.filter(|expected| *expected > 0)
    })
}

#[tokio::test]
async fn a_cache_reset_forgets_old_blocks() {
    let fleet = start(8_192).await;
    ask_until_exact(&fleet, 'a').await;
    ask_until_exact(&fleet, 'b').await;
    let reset = post("/reset_prefix_cache", "");
    let answer = read_rest(send_to(fleet.backend_addrs[0], reset).await).await;
    assert_eq!(body_text(&answer), r#"{"success":true}"#);
    // An engine publishes the reset of its cache only with its next step.
    let record = ask(&fleet, 'a', 1_000, "question").await;
    assert_eq!(record.observed.usage.cached, Some(0));
    let record = ask(&fleet, 'b', 1_000, "question").await;
    assert_eq!(expected_and_found(&record), (Some(0), 0));
    assert!(ask_until_exact(&fleet, 'a').await > 900);
}

/// Replaces the process of the engine by a new process with these settings at the same address.
async fn restart(fleet: &mut Fleet, settings: SimulatorSettings) {
    fleet.serving.abort();
    let settings = SimulatorSettings {
        listen: fleet.backend_addrs[0],
        ..settings
    };
    let sim = wait_for!(Simulator::bind(&settings).await.ok());
    fleet.serving = tokio::spawn(sim.run(std::future::pending()));
}

#[tokio::test]
async fn an_engine_restart_forgets_old_blocks() {
    let mut fleet = start(8_192).await;
    ask_until_exact(&fleet, 'a').await;
    let ports = fleet.backends[0].kv_event_ports().unwrap();
    let settings = SimulatorSettings {
        kv_events_port: Some(ports.live),
        kv_events_replay_port: ports.replay,
        ..engine(8_192)
    };
    restart(&mut fleet, settings).await;
    // The new process first computes blocks of another prompt.
    wait_until!({
        let answer = fleet
            .gateway
            .raw(post("/v1/completions", r#"{"prompt":"x","max_tokens":1}"#));
        let answer = answer.await;
        fleet.gateway.record().await;
        answer.starts_with(b"HTTP/1.1 200")
    });
    let record = ask(&fleet, 'b', 1_000, "question").await;
    assert!(
        expected_and_found(&record)
            .0
            .is_none_or(|expected| expected == 0)
    );
    let record = ask(&fleet, 'a', 1_000, "question").await;
    let (expected, found) = expected_and_found(&record);
    assert_eq!(found, 0);
    assert!(
        expected.is_none_or(|expected| expected == 0),
        "{expected:?}"
    );
    assert!(ask_until_exact(&fleet, 'a').await > 900);
}

#[tokio::test]
async fn a_restart_without_events_counts_as_none() {
    let mut fleet = start(8_192).await;
    let settings = SimulatorSettings {
        kv_events_port: None,
        ..engine(8_192)
    };
    restart(&mut fleet, settings).await;
    wait_until!(cache_of(&fleet.gateway.pool.backends()[0]).is_none());
}

#[tokio::test]
async fn unreachable_publishers_do_not_affect_requests() {
    // Three KV event endpoints that cannot be used: a closed port, a port without ZeroMQ, and a host other
    // than that of the backend.
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let other = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let fake = ScriptedBackend::answering(json_response("200 OK", r#"{"a":1}"#)).await;
    fake.set_metrics(Some(Page::of(PREFIX_CACHE_PAGE)));
    let lists = [
        "no list".to_owned(),
        source(&format!("tcp://*:{}", closed.port())),
        source(&format!("tcp://*:{}", fake.addr.port())),
        source(&format!("tcp://{}", other.local_addr().unwrap())),
    ];
    for sources in lists {
        fake.set_page("/kv_event_sources", "200 OK", &sources);
        let asked_before = fake.asked("/kv_event_sources");
        let gateway = start_with(&[fake.addr], using_offered_events()).await;
        wait_until!(fake.asked("/kv_event_sources") > asked_before);
        let answer = gateway
            .raw(post("/v1/completions", r#"{"prompt":"x"}"#))
            .await;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{sources}");
        let seen = fake.take_received().pop().unwrap();
        assert!(
            !seen.head.to_ascii_lowercase().contains("x-session-id"),
            "{}",
            seen.head
        );
        assert!(cache_of(&gateway.pool.backends()[0]).is_none(), "{sources}");
    }
    assert!(
        other.accept().is_err(),
        "the gateway connects to no other host"
    );
}

const PREFIX_CACHE_PAGE: &str = "vllm:num_requests_running{engine=\"0\"} 0.0\n\
    vllm:num_requests_waiting{engine=\"0\"} 0.0\n\
    vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
    vllm:prefix_cache_queries_total{engine=\"0\"} 1.0\n";

/// Builds vLLM's response that lists its KV event publishers: one publisher with this endpoint.
fn source(endpoint: &str) -> String {
    json!({ "0": { "enable_kv_cache_events": true, "endpoint": endpoint } }).to_string()
}

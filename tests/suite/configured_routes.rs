//! API paths that the configuration adds, the total timeout, and models whose backends are all down.

use crate::access::{access, keyed, tenant};
use crate::support::scripted_backend::{
    Page, ROLE, ScriptedBackend, Step, WORD, begin, json, stream_of,
};
use crate::support::test_gateway::{
    CHAT, Setup, advance_time, body, body_json, gateway_answering, gateway_following_with, get,
    post, read_until, start, start_with, status,
};
use http::Method;
use std::time::Duration;
use tokenweir_gateway::proxy::{ConfiguredRoute, ConfiguredRoutes};
use tokenweir_request::record::Outcome;
use tokenweir_routing::resilience::Availability;
use tokio::io::AsyncReadExt;

const PATH: &str = "/generative_scoring";

fn routes(methods: &[Method], total: Option<Duration>) -> ConfiguredRoutes {
    let route = ConfiguredRoute::new(PATH, methods.to_vec(), total);
    ConfiguredRoutes::new([route].into_iter())
}

async fn scoring() -> ScriptedBackend {
    let answer = r#"{"id":"s","usage":{"prompt_tokens":9,"completion_tokens":0,"total_tokens":9}}"#;
    ScriptedBackend::answering(json("200 OK", answer)).await
}

#[tokio::test]
async fn an_added_path_is_forwarded_and_measured() {
    let fake = scoring().await;
    let routes = routes(&[Method::POST, Method::GET], None);
    let gateway = start_with(
        &[fake.addr],
        Setup {
            routes,
            ..Setup::default()
        },
    )
    .await;
    assert_eq!(
        status(&gateway.post(PATH, r#"{"model":"tiny","query":"a"}"#).await),
        200
    );
    let record = gateway.record().await;
    assert_eq!((record.route, record.outcome), (Some(PATH), Outcome::Ok));
    assert_eq!(
        (record.model.as_str(), record.observed.usage.input),
        ("tiny", Some(9))
    );
    assert_eq!(status(&gateway.raw(get(&format!("{PATH}?a=b"))).await), 200);
    assert!(
        fake.seen()[1]
            .head
            .starts_with(&format!("GET {PATH}?a=b HTTP/1.1\r\n"))
    );
    let delete = get(PATH).replacen("GET", "DELETE", 1);
    let answer = String::from_utf8(gateway.raw(delete).await).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 405") && answer.contains("POST, GET"),
        "{answer}"
    );
    assert_eq!(fake.seen().len(), 2);
}

#[tokio::test]
async fn permissions_and_control_rules_apply_on_added_paths() {
    let fake = scoring().await;
    fake.set_models(&["tiny", "secret"]);
    let restricted = tokenweir_request::access::TenantEntry {
        models: Some(vec!["tiny".into()]),
        ..tenant()
    };
    let (access, routes) = (access(restricted), routes(&[Method::POST], None));
    let gateway = start_with(
        &[fake.addr],
        Setup {
            access,
            routes,
            ..Setup::default()
        },
    )
    .await;
    let ask = |body: &str| keyed(&post(PATH, body));
    assert_eq!(status(&gateway.raw(ask(r#"{"model":"tiny"}"#)).await), 200);
    assert_eq!(
        status(&gateway.raw(ask(r#"{"model":"secret"}"#)).await),
        403
    );
    assert_eq!(
        status(&gateway.raw(ask("\u{feff}{\"model\":\"secret\"}")).await),
        400
    );
    assert_eq!(status(&gateway.raw(ask("not json")).await), 400);
    let controlled = r#"{"model":"tiny","kv_transfer_params":{"remote_host":"x"}}"#;
    assert_eq!(status(&gateway.raw(ask(controlled)).await), 400);
    assert_eq!(
        status(&gateway.raw(post(PATH, r#"{"model":"tiny"}"#)).await),
        401
    );
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn token_ids_without_text_are_output() {
    let event = |ids: &str, finish: &str| {
        format!(
            r#"{{"request_id":"g","choices":[{{"index":0,"token_ids":{ids},"finish_reason":{finish}}}]}}"#
        )
    };
    let events = [
        event("[7]", "null"),
        event("[8,9]", "\"stop\""),
        "[DONE]".to_owned(),
    ];
    let (_fake, gateway) = gateway_answering(stream_of(&events)).await;
    let ask = r#"{"model":"tiny","token_ids":[1,2],"sampling_params":{},"stream":true}"#;
    assert_eq!(
        status(&gateway.post("/inference/v1/generate", ask).await),
        200
    );
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.output_tokens()),
        (Outcome::Ok, Some(3))
    );
    assert!(record.ttft().is_some());
}

#[tokio::test]
async fn the_total_timeout_is_no_backend_failure() {
    let setup = Setup {
        total: Some(Duration::from_mins(1)),
        ..Setup::default()
    };
    let steps = [begin(&[ROLE, WORD]), Step::AwaitClose];
    let (_fake, gateway) = gateway_following_with(setup, steps).await;
    let mut client = gateway
        .begin(CHAT, r#"{"model":"tiny","stream":true}"#)
        .await;
    let mut answer = read_until(&mut client, "Hi").await;
    advance_time(Duration::from_secs(61)).await;
    // The gateway may reset the connection, so reading can end with an error.
    let _ = client.read_to_end(&mut answer).await;
    assert!(!body(&answer).1, "the stream is cut");
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.ending()),
        (Outcome::Timeout, "timeout_total")
    );
    assert!(gateway.pool.is_ready());
}

#[tokio::test]
async fn the_total_timeout_limits_whole_responses() {
    let routes = routes(&[Method::POST], Some(Duration::from_millis(50)));
    let setup = Setup {
        routes,
        ..Setup::default()
    };
    let (_fake, gateway) = gateway_following_with(setup, [Step::AwaitClose]).await;
    let answer = gateway.post(PATH, r#"{"model":"tiny"}"#).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    assert!(
        text.starts_with("HTTP/1.1 504") && text.contains("total_timeout"),
        "{text}"
    );
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.ending()),
        (Outcome::Timeout, "timeout_total")
    );
    assert_eq!(record.attempts.len(), 1);
}

#[tokio::test]
async fn models_without_backends_are_listed_as_unavailable() {
    let fakes = [scoring().await, scoring().await];
    fakes[0].set_models(&["a", "both"]);
    fakes[1].set_models(&["b", "both"]);
    let gateway = start(&[fakes[0].addr, fakes[1].addr]).await;
    let list = async || gateway.raw(get("/v1/models")).await;
    assert_eq!(body_json(&list().await).get("unavailable_models"), None);
    let asleep = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n\
                  vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\n";
    fakes[1].set_metrics(Some(Page::of(asleep)));
    wait_until!(gateway.pool.availabilities()[1] == Availability::Asleep);
    let listed = body_json(&list().await);
    let ids: Vec<_> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["id"])
        .collect();
    assert_eq!(ids, ["a", "b", "both"]);
    assert_eq!(listed["unavailable_models"], serde_json::json!(["b"]));
    assert_eq!(status(&gateway.raw(get("/v1/models/a")).await), 200);
    assert_eq!(status(&gateway.raw(get("/v1/models/b")).await), 200);
    fakes[0].set_healthy(false);
    gateway.pool.backends()[0].mark_down("refused");
    let listed = body_json(&list().await);
    assert_eq!(
        listed["unavailable_models"],
        serde_json::json!(["a", "b", "both"])
    );
    assert_eq!(listed["data"].as_array().unwrap().len(), 3);
}

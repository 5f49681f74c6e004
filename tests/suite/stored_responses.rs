//! Requests about a stored response go to the backend that stores it. They never reach a response of another
//! tenant.

use crate::access::{KEY, OTHER_KEY, access, access_of, other_tenant, tenant};
use crate::capabilities::round_robin;
use crate::support::scripted_backend::{ScriptedBackend, Step, begin, json};
use crate::support::test_gateway::{
    Setup, body, post, read_until, start, start_before, start_with, status, with_lines,
};
use std::sync::Arc;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_protocol::openai::engine_control::Permission;
use tokenweir_request::access::TenantEntry;
use tokenweir_request::record::Outcome;

const RESPONSES: &str = "/v1/responses";

/// Starts a backend that stores one response with this id. It answers 404 to requests about other ids.
async fn storing(id: &'static str) -> ScriptedBackend {
    let whole = format!(
        r#"{{"id":"{id}","object":"response","status":"completed","output":[],
        "usage":{{"input_tokens":5,"output_tokens":7,"total_tokens":12}}}}"#
    );
    ScriptedBackend::start(move |seen| {
        let is_about_another = seen.head.contains("/v1/responses/") && !seen.head.contains(id);
        let missing = r#"{"error":{"message":"not found","type":"NotFoundError","code":404}}"#;
        let answer = if is_about_another {
            json("404 Not Found", missing)
        } else {
            json("200 OK", &whole)
        };
        vec![Step::Send(answer)]
    })
    .await
}

fn about(method: &str, path: &str, key: Option<&str>) -> String {
    let key = key
        .map(|key| format!("authorization: Bearer {key}\r\n"))
        .unwrap_or_default();
    format!("{method} {path} HTTP/1.1\r\nhost: g\r\n{key}connection: close\r\n\r\n")
}

fn keyed_post(request_body: &str, key: &str) -> String {
    with_lines(
        &post(RESPONSES, request_body),
        &format!("authorization: Bearer {key}"),
    )
}

/// Returns the request lines that a backend has received since the last call of this function.
fn request_lines(fake: &ScriptedBackend) -> Vec<String> {
    let first_line = |head: String| head.lines().next().unwrap().to_owned();
    fake.take_received()
        .into_iter()
        .map(|seen| first_line(seen.head))
        .collect()
}

fn two_tenants(allow: Vec<Permission>) -> Arc<AccessControl> {
    let other = TenantEntry {
        allow,
        ..other_tenant(tenant())
    };
    access_of(vec![tenant(), other])
}

#[tokio::test]
async fn a_request_goes_to_the_storing_backend() {
    let fakes = [storing("resp_1").await, storing("resp_2").await];
    let gateway = start(&[fakes[0].addr, fakes[1].addr]).await;
    let ask = r#"{"model":"tiny","input":"a","store":true}"#;
    let mut ids = Vec::new();
    while ids.len() < 2 {
        assert_eq!(status(&gateway.post(RESPONSES, ask).await), 200);
        let record = gateway.record().await;
        let id = record.observed.response_id.clone().unwrap().into_string();
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    for fake in &fakes {
        fake.take_received();
    }
    for (method, suffix) in [
        ("GET", "?stream=false"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ] {
        for (fake, id) in fakes.iter().zip(["resp_1", "resp_2"]) {
            let answer = gateway.raw(about(method, &format!("/v1/responses/{id}{suffix}"), None));
            assert_eq!(status(&answer.await), 200);
            let expected = format!("{method} /v1/responses/{id}{suffix} HTTP/1.1");
            assert_eq!(request_lines(fake), [expected]);
            let record = gateway.record().await;
            assert_eq!((record.outcome, record.attempts.len()), (Outcome::Ok, 1));
            // The record of a request about a stored response has no tokens: they belong to the request that
            // created the response.
            assert_eq!(record.output_tokens(), None);
            assert_eq!(record.observed.usage.input, None);
        }
    }
}

#[tokio::test]
async fn a_running_response_is_its_tenants_only() {
    let created =
        r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}"#;
    let delta = r#"{"type":"response.output_text.delta","delta":"Hi"}"#;
    let fake = ScriptedBackend::start(move |seen| {
        if seen.head.contains("/v1/responses/") {
            return vec![Step::Send(json(
                "200 OK",
                r#"{"id":"resp_1","status":"in_progress"}"#,
            ))];
        }
        vec![begin(&[created, delta]), Step::AwaitClose]
    })
    .await;
    let access = two_tenants(Vec::new());
    let gateway = start_with(
        &[fake.addr],
        Setup {
            access,
            ..Setup::default()
        },
    )
    .await;
    let ask = keyed_post(r#"{"model":"tiny","input":"a","stream":true}"#, KEY);
    let mut stream = gateway.send(ask).await;
    read_until(&mut stream, "resp_1").await;
    for (method, path) in [
        ("GET", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1?stream=true&starting_after=1"),
        ("POST", "/v1/responses/resp_1/cancel"),
    ] {
        fake.take_received();
        assert_eq!(
            status(&gateway.raw(about(method, path, Some(KEY))).await),
            200,
            "{method}"
        );
        assert_eq!(
            status(&gateway.raw(about(method, path, Some(OTHER_KEY))).await),
            404
        );
        assert_eq!(request_lines(&fake), [format!("{method} {path} HTTP/1.1")]);
    }
}

#[tokio::test]
async fn an_unknown_id_is_sent_to_each_backend() {
    let fakes = [
        storing("resp_1").await,
        storing("resp_2").await,
        storing("resp_3").await,
    ];
    let gateway = start(&fakes.each_ref().map(|fake| fake.addr)).await;
    for id in ["resp_1", "resp_2", "resp_3"] {
        let answer = gateway
            .raw(about("GET", &format!("/v1/responses/{id}"), None))
            .await;
        assert_eq!(status(&answer), 200, "{id}");
        let record = gateway.record().await;
        let failures = record.attempts.iter().filter_map(|attempt| attempt.failure);
        assert!(failures.into_iter().all(|failure| failure == "not_stored"));
    }
    let answer = gateway
        .raw(about("GET", "/v1/responses/resp_4", None))
        .await;
    assert_eq!(
        (status(&answer), gateway.record().await.attempts.len()),
        (404, 3)
    );
    assert!(String::from_utf8_lossy(&body(&answer).0).contains("not found"));
    // Requests for unknown ids must not eject a backend.
    assert!(gateway.pool.is_ready());
}

#[tokio::test]
async fn another_tenants_response_is_not_found() {
    let fake = storing("resp_1").await;
    let setup = Setup {
        access: two_tenants(Vec::new()),
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    let ask = r#"{"model":"tiny","input":"a"}"#;
    assert_eq!(status(&gateway.raw(keyed_post(ask, KEY)).await), 200);
    let of_resp_1 = |key| about("GET", "/v1/responses/resp_1", Some(key));
    assert_eq!(status(&gateway.raw(of_resp_1(KEY)).await), 200);
    let received = fake.seen().len();
    for request in [
        of_resp_1(OTHER_KEY),
        about("POST", "/v1/responses/resp_1/cancel", Some(OTHER_KEY)),
        about("GET", "/v1/responses/resp_9", Some(KEY)),
        keyed_post(
            r#"{"model":"tiny","input":"a","previous_response_id":"resp_1"}"#,
            OTHER_KEY,
        ),
        keyed_post(
            r#"{"model":"tiny","input":"a","previous_response_id":"resp_9"}"#,
            KEY,
        ),
    ] {
        let answer = String::from_utf8(gateway.raw(&request).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{request}: {answer}");
        assert!(
            answer.contains("x-gateway-error: response_not_found"),
            "{answer}"
        );
    }
    let without_key = about("GET", "/v1/responses/resp_1", None);
    assert_eq!(status(&gateway.raw(without_key).await), 401);
    assert_eq!(
        fake.seen().len(),
        received,
        "no request reached the backend"
    );
}

#[tokio::test]
async fn the_permission_opens_only_responses_of_unknown_tenants() {
    let fake = storing("resp_1").await;
    let access = two_tenants(vec![Permission::StoredResponses]);
    let gateway = start_with(
        &[fake.addr],
        Setup {
            access,
            ..Setup::default()
        },
    )
    .await;
    let of_resp_1 = || about("GET", "/v1/responses/resp_1", Some(OTHER_KEY));
    assert_eq!(status(&gateway.raw(of_resp_1()).await), 200);
    let ask = r#"{"model":"tiny","input":"a"}"#;
    assert_eq!(status(&gateway.raw(keyed_post(ask, KEY)).await), 200);
    assert_eq!(status(&gateway.raw(of_resp_1()).await), 404);
}

#[tokio::test]
async fn a_continuing_request_goes_to_the_storing_backend() {
    let fakes = [storing("resp_1").await, storing("resp_2").await];
    let gateway = start_before(&fakes, round_robin()).await;
    gateway
        .post(RESPONSES, r#"{"model":"tiny","input":"a"}"#)
        .await;
    let id = gateway.record().await.observed.response_id.clone().unwrap();
    for fake in &fakes {
        fake.take_received();
    }
    let next = format!(r#"{{"model":"tiny","input":"b","previous_response_id":"{id}"}}"#);
    for _ in 0..6 {
        assert_eq!(status(&gateway.post(RESPONSES, &next).await), 200);
    }
    let mut counts = fakes.each_ref().map(|fake| fake.take_received().len());
    counts.sort_unstable();
    assert_eq!(counts, [0, 6]);
}

#[tokio::test]
async fn store_false_is_not_remembered() {
    let fake = storing("resp_1").await;
    let setup = Setup {
        access: access(tenant()),
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    let ask = r#"{"model":"tiny","input":"a","store":false}"#;
    assert_eq!(status(&gateway.raw(keyed_post(ask, KEY)).await), 200);
    let answer = gateway
        .raw(about("GET", "/v1/responses/resp_1", Some(KEY)))
        .await;
    assert_eq!(status(&answer), 404);
}

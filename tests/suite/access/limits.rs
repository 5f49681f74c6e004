//! Usage limits of tenants. The gateway counts open requests and tokens, counts a request as ended however it
//! ends, and charges the token counts that the engine reports.

use super::{ASK, CHAT, access, error, gated, head, keyed, scripted_backend, tenant};
use crate::admission::held;
use crate::metrics::{assert_value, value};
use crate::support::scripted_backend::{
    ROLE, ScriptedBackend, Step, WHOLE_STREAM, WORD, begin, json, stream_of,
};
use crate::support::test_gateway::{
    ASK_STREAM, Setup, gateway_following_with, get, post, read_until_times, start_with, status,
};
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_request::access::{TenantEntry, UsageLimits};
use tokenweir_request::record::Outcome;
use tokio::io::AsyncReadExt;

fn limited(limits: UsageLimits) -> TenantEntry {
    TenantEntry { limits, ..tenant() }
}

fn concurrency(most: u32) -> TenantEntry {
    limited(UsageLimits {
        concurrency: Some(most),
        ..UsageLimits::default()
    })
}

fn tokens(per_minute: u32) -> TenantEntry {
    limited(UsageLimits {
        tokens_per_minute: Some(per_minute),
        ..UsageLimits::default()
    })
}

/// Returns the number of open requests of all API keys.
fn open(access: &AccessControl) -> u32 {
    access.keys().unwrap().open().map(|(_, open)| open).sum()
}

#[tokio::test]
async fn requests_over_the_concurrency_limit_are_rejected() {
    let fake = held().await;
    let gateway = gated(&fake, concurrency(2)).await;
    let ask = keyed(&post(CHAT, ASK));
    let mut clients = [gateway.send(&ask).await, gateway.send(&ask).await];
    fake.until_received(2).await;
    let refused = gateway.raw(keyed(&post(CHAT, ASK))).await;
    assert_eq!(status(&refused), 429);
    let response_head = head(&refused);
    assert!(
        response_head.contains("retry-after: 1") && response_head.contains("concurrency_limit"),
        "{response_head}"
    );
    assert_eq!(error(&refused)["code"], "rate_limit_exceeded");
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.attempts.len()),
        (Outcome::ClientError, 0)
    );
    (0..3).for_each(|_| fake.go());
    for client in &mut clients {
        client.read_to_end(&mut Vec::new()).await.unwrap();
    }
    // The gateway ends the count of a request before its client has the whole response, so the next request
    // succeeds.
    assert_eq!(status(&gateway.raw(keyed(&post(CHAT, ASK))).await), 200);
    let page = gateway.admin("/metrics").await;
    let result = |result: &str| {
        format!(
            "tokenweir_attempts_total{{backend=\"{}\",result=\"{result}\"}}",
            fake.addr
        )
    };
    assert_value(&page, &result("ok"), 3.0);
    assert!(!page.contains(&result("error_status")));
    assert!(gateway.pool.is_ready(), "no backend is marked down");
}

#[tokio::test]
async fn a_failed_request_no_longer_counts() {
    for steps in [
        vec![Step::Close],
        vec![Step::Reset],
        vec![Step::Send(json("500 No", "{}"))],
        vec![begin(&[WORD]), Step::Reset],
    ] {
        let access = access(concurrency(1));
        let setup = Setup {
            access: access.clone(),
            ..Setup::default()
        };
        let (_fake, gateway) = gateway_following_with(setup, steps).await;
        gateway.raw(keyed(&post(CHAT, ASK_STREAM))).await;
        gateway.record().await;
        gateway.raw(keyed(&post(CHAT, "not JSON"))).await;
        gateway.record().await;
        gateway.raw(keyed(&post("/nothing", ASK))).await;
        gateway.record().await;
        wait_until!(open(&access) == 0);
    }
}

/// Sends the same request twice to a gateway with this limit of tokens per minute. Returns the status and
/// head of the second response. Its status is 429 if the first request used more than the limit.
async fn debt_after(fake: &ScriptedBackend, limit: u32, request: &str) -> (u16, String) {
    let gateway = gated(fake, tokens(limit)).await;
    let first = gateway.raw(keyed(request)).await;
    assert_eq!(status(&first), 200);
    gateway.record().await;
    let next = gateway.raw(keyed(request)).await;
    (status(&next), head(&next))
}

#[tokio::test]
async fn tenants_pay_the_engines_token_counts() {
    let stream = ScriptedBackend::answering(stream_of(&WHOLE_STREAM)).await;
    let answer = r#"{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}"#;
    let scripted_backend = ScriptedBackend::answering(json("200 OK", answer)).await;
    for (fake, request) in [
        (&stream, post(CHAT, ASK_STREAM)),
        (&scripted_backend, post(CHAT, ASK)),
    ] {
        // The first request uses 12 tokens and the limit is 6 per minute, so the next request must wait for a
        // minute.
        let (status, response_head) = debt_after(fake, 6, &request).await;
        assert_eq!(status, 429, "{response_head}");
        assert!(
            response_head.contains("x-gateway-error: token_limit"),
            "{response_head}"
        );
        let wait = response_head
            .split("retry-after: ")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap();
        assert!(
            (55..=60).contains(&wait.parse::<u32>().unwrap()),
            "{response_head}"
        );
        assert!(
            response_head.contains("x-ratelimit-limit-tokens: 6\r\n"),
            "{response_head}"
        );
        assert!(
            response_head.contains("x-ratelimit-remaining-tokens: 0\r\n"),
            "{response_head}"
        );
        assert_eq!(debt_after(fake, 600, &request).await.0, 200);
    }
}

#[tokio::test]
async fn a_disconnected_client_pays_what_it_received() {
    let steps = [begin(&[ROLE, WORD, WORD]), Step::AwaitClose];
    let fake = ScriptedBackend::following(steps).await;
    let gateway = gated(&fake, tokens(2)).await;
    let words = "word ".repeat(100);
    let ask = ASK_STREAM.replace("[]", &format!(r#"[{{"role":"user","content":"{words}"}}]"#));
    let mut client = gateway.send(keyed(&post(CHAT, &ask))).await;
    read_until_times(&mut client, "\"Hi\"", 2).await;
    drop(client);
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.observed.usage.input),
        (Outcome::Cancelled, None)
    );
    let page = gateway.admin("/metrics").await;
    let charged = |kind: &str| {
        value(
            &page,
            &format!("tokenweir_tenant_tokens_total{{tenant=\"a\",type=\"{kind}\"}}"),
        )
    };
    assert!(
        (charged("output") - 2.0).abs() < 0.1,
        "{}",
        charged("output")
    );
    // 500 characters are about 125 tokens. The range is wide, because the gateway has not yet learned the
    // ratio of characters to tokens.
    assert!(
        (50.0..300.0).contains(&charged("input")),
        "{}",
        charged("input")
    );
    let next = gateway.raw(keyed(&post(CHAT, &ask))).await;
    assert!(
        head(&next).contains("x-gateway-error: token_limit"),
        "{}",
        head(&next)
    );
}

/// The engine reports the tokens of a background request only when its stored response is requested later.
#[tokio::test]
async fn limits_of_tokens_refuse_background_responses() {
    const RESPONSES: &str = "/v1/responses";
    let answer = r#"{"id":"resp_1","object":"response","status":"queued","output":[]}"#;
    let fake = ScriptedBackend::answering(json("200 OK", answer)).await;
    let ask =
        |background: &str| format!(r#"{{"model":"tiny","input":"hi","background":{background}}}"#);
    let gateway = gated(&fake, tokens(100)).await;
    for background in ["true", "1", "\"yes\""] {
        let refused = gateway.raw(keyed(&post(RESPONSES, &ask(background)))).await;
        assert_eq!(status(&refused), 400, "{background}");
        assert!(head(&refused).contains("x-gateway-error: request_cap"));
    }
    assert!(fake.seen().is_empty());
    let whole = gateway.raw(keyed(&post(RESPONSES, &ask("false")))).await;
    assert_eq!(status(&whole), 200);
    let gateway = gated(&fake, concurrency(1)).await;
    let background = gateway.raw(keyed(&post(RESPONSES, &ask("true")))).await;
    assert_eq!(status(&background), 200);
}

#[tokio::test]
async fn a_request_without_a_model_escapes_no_limit() {
    let fakes = [scripted_backend().await, scripted_backend().await];
    fakes[0].set_models(&["small"]);
    fakes[1].set_models(&["big"]);
    let limits = UsageLimits {
        requests_per_day: Some(1),
        ..UsageLimits::default()
    };
    let tenant = TenantEntry {
        model_limits: [("big".to_owned(), limits)].into(),
        ..tenant()
    };
    let setup = Setup {
        access: access(tenant),
        ..Setup::default()
    };
    let gateway = start_with(&[fakes[0].addr, fakes[1].addr], setup).await;
    let ask = async |model: &str| {
        let body = format!(r#"{{{model}"messages":[]}}"#);
        status(&gateway.raw(keyed(&post(CHAT, &body))).await)
    };
    assert_eq!(ask("").await, 403, "a backend would select the model");
    assert_eq!(ask(r#""model":"small","#).await, 200);
    assert_eq!(ask(r#""model":"big","#).await, 200);
    assert_eq!(ask(r#""model":"big","#).await, 429);
}

#[tokio::test]
async fn headers_state_remaining_requests_and_tokens() {
    let fake = scripted_backend().await;
    let limits = UsageLimits {
        requests_per_minute: Some(3),
        tokens_per_minute: Some(1_000),
        ..UsageLimits::default()
    };
    let gateway = gated(&fake, limited(limits)).await;
    for remaining in [2, 1, 0] {
        let answer = head(&gateway.raw(keyed(&post(CHAT, ASK))).await);
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
        assert!(
            answer.contains("x-ratelimit-limit-requests: 3\r\n"),
            "{answer}"
        );
        assert!(
            answer.contains(&format!("x-ratelimit-remaining-requests: {remaining}\r\n")),
            "{answer}"
        );
        assert!(
            answer.contains("x-ratelimit-limit-tokens: 1000"),
            "{answer}"
        );
    }
    let refused = gateway.raw(keyed(&post(CHAT, ASK))).await;
    assert_eq!(status(&refused), 429);
    let response_head = head(&refused);
    assert!(
        response_head.contains("x-gateway-error: request_limit"),
        "{response_head}"
    );
    assert!(
        response_head.contains("retry-after: 20") || response_head.contains("retry-after: 19"),
        "{response_head}"
    );
    assert_eq!(fake.seen().len(), 3);
    let listed = gateway.raw(keyed(&get("/v1/models"))).await;
    assert_eq!(
        status(&listed),
        200,
        "a request for the model list is not limited"
    );
}

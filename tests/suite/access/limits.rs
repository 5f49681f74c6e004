//! What is taken is counted, given back wherever a request ends, and charged by what was used.

use super::{ASK, CHAT, KEY, access, error, gated, head, keyed, tenant, whole};
use crate::metrics::value;
use crate::support::fake::{
    FINISH, Fake, ROLE, Seen, Step, USAGE, WORD, chunk, json, stream_head, stream_of,
};
use crate::support::gateway::{Running, Setup, post, start_with, status, waiting_room};
use std::sync::Arc;
use tokenweir::config;
use tokenweir::proxy::access::Access;
use tokenweir_core::access::{Limits, TenantEntry};
use tokenweir_core::record::Outcome;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const STREAM: &str = r#"{"model":"tiny","stream":true,"messages":[]}"#;

fn limited(limits: Limits) -> TenantEntry {
    TenantEntry { limits, ..tenant() }
}

fn concurrency(most: u32) -> TenantEntry {
    limited(Limits { concurrency: Some(most), ..Limits::default() })
}

fn tokens(per_minute: u32) -> TenantEntry {
    limited(Limits { tokens_per_minute: Some(per_minute), ..Limits::default() })
}

/// Requests of the tenant that are open.
fn open(access: &Access) -> u32 {
    access.keys().unwrap().open().map(|(_, open)| open).sum()
}

async fn until_open(access: &Access, count: u32) {
    while open(access) != count {
        tokio::task::yield_now().await;
    }
}

async fn send(gateway: &Running, request: &str) -> TcpStream {
    let mut client = gateway.connect().await;
    client.write_all(keyed(request).as_bytes()).await.unwrap();
    client
}

async fn until_asked(fake: &Fake, count: usize) {
    while fake.seen().len() < count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn more_requests_at_once_than_allowed_are_refused_until_one_has_ended() {
    let fake = Fake::start(|_| vec![Step::Wait, Step::Send(json("200 OK", "{}"))]).await;
    let gateway = gated(&fake, concurrency(2)).await;
    let mut clients =
        [send(&gateway, &post(CHAT, ASK)).await, send(&gateway, &post(CHAT, ASK)).await];
    until_asked(&fake, 2).await;
    let refused = gateway.raw(keyed(&post(CHAT, ASK))).await;
    assert_eq!(status(&refused), 429);
    let told = head(&refused);
    assert!(told.contains("retry-after: 1") && told.contains("concurrency_limit"), "{told}");
    assert_eq!(error(&refused)["code"], "rate_limit_exceeded");
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.attempts.len()), (Outcome::ClientError, 0));
    (0..3).for_each(|_| fake.go());
    for client in &mut clients {
        client.read_to_end(&mut Vec::new()).await.unwrap();
    }
    // A client that has its whole answer has given its place back.
    assert_eq!(status(&gateway.raw(keyed(&post(CHAT, ASK))).await), 200);
    let page = gateway.admin("/metrics").await;
    let result = |result: &str| {
        let series =
            format!("tokenweir_attempts_total{{backend=\"{}\",result=\"{result}\"}}", fake.addr);
        value(&page, &series)
    };
    assert!((result("ok") - 3.0).abs() < 0.5 && result("error_status") < 0.5);
    assert!(gateway.pool.is_ready(), "a replica is not to blame");
}

/// Where a client leaves: what it has sent, what the replica does, and how it is seen that the
/// request is there.
struct Phase {
    name: &'static str,
    request: String,
    script: fn(&Seen) -> Vec<Step>,
    /// Waits for so many bytes of answer.
    reads: usize,
    /// The replica gets the request.
    is_sent: bool,
}

fn phases() -> Vec<Phase> {
    let half = post(CHAT, ASK);
    let half = half[..half.len() - 10].to_owned();
    let phase =
        |name, request, script, reads, is_sent| Phase { name, request, script, reads, is_sent };
    let stream = || post(CHAT, STREAM);
    vec![
        phase("upload", half, |_| vec![], 0, false),
        phase("headers", stream(), |_| vec![Step::AwaitClose], 0, true),
        phase("prefill", stream(), |_| vec![Step::Send(stream_head()), Step::AwaitClose], 0, true),
        phase(
            "first event",
            stream(),
            |_| vec![Step::Send([stream_head(), chunk(ROLE)].concat()), Step::AwaitClose],
            0,
            true,
        ),
        phase(
            "decode",
            stream(),
            |_| {
                vec![
                    Step::Send([stream_head(), chunk(ROLE), chunk(WORD)].concat()),
                    Step::AwaitClose,
                ]
            },
            350,
            true,
        ),
        phase(
            "after the last event",
            stream(),
            |_| {
                let events = [ROLE, WORD, FINISH, "[DONE]"].map(chunk).concat();
                vec![Step::Send([stream_head(), events].concat()), Step::AwaitClose]
            },
            500,
            true,
        ),
        phase(
            "whole answer",
            post(CHAT, ASK),
            |_| {
                let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec();
                vec![Step::Send(begun), Step::AwaitClose]
            },
            0,
            true,
        ),
    ]
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_place_back_wherever_the_request_was() {
    for Phase { name, request, script, reads, is_sent } in phases() {
        let fake = Fake::start(script).await;
        let access = access(concurrency(1));
        let setup = Setup { access: access.clone(), ..Setup::default() };
        let gateway = start_with(&[fake.addr], setup).await;
        for round in 1..=3 {
            let mut client = send(&gateway, &request).await;
            let mut got = Vec::new();
            while got.len() < reads {
                assert_ne!(client.read_buf(&mut got).await.unwrap(), 0, "{name}");
            }
            until_open(&access, 1).await;
            if is_sent {
                until_asked(&fake, round).await;
            }
            drop(client);
            gateway.record().await;
            until_open(&access, 0).await;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_the_waiting_room_gives_its_place_back() {
    let fake = Fake::start(|_| vec![Step::AwaitClose]).await;
    let access = access(concurrency(2));
    let admission = config::Admission { max_in_flight: Some(1), ..config::Admission::default() };
    let admission = Some(waiting_room(&admission));
    let setup = Setup { access: access.clone(), admission, ..Setup::default() };
    let gateway = start_with(&[fake.addr], setup).await;
    let first = send(&gateway, &post(CHAT, STREAM)).await;
    until_asked(&fake, 1).await;
    let second = send(&gateway, &post(CHAT, STREAM)).await;
    while !gateway.admin("/status").await.contains("\"waiting\":1") {}
    assert_eq!(open(&access), 2, "whoever waits has a place too");
    assert!(gateway.admin("/status").await.contains("\"requests_in_flight\":{\"a\":2}"));
    drop(second);
    assert_eq!(gateway.record().await.outcome, Outcome::Cancelled);
    until_open(&access, 1).await;
    drop(first);
    gateway.record().await;
    until_open(&access, 0).await;
}

#[tokio::test]
async fn a_request_that_fails_gives_its_place_back() {
    let scripts: [fn(&Seen) -> Vec<Step>; 4] = [
        |_| vec![Step::Close],
        |_| vec![Step::Reset],
        |_| vec![Step::Send(json("500 No", "{}"))],
        |_| vec![Step::Send([stream_head(), chunk(WORD)].concat()), Step::Reset],
    ];
    for script in scripts {
        let fake = Fake::start(script).await;
        let access = access(concurrency(1));
        let setup = Setup { access: access.clone(), ..Setup::default() };
        let gateway = start_with(&[fake.addr], setup).await;
        gateway.raw(keyed(&post(CHAT, STREAM))).await;
        gateway.record().await;
        gateway.raw(keyed(&post(CHAT, "not JSON"))).await;
        gateway.record().await;
        gateway.raw(keyed(&post("/nothing", ASK))).await;
        gateway.record().await;
        until_open(&access, 0).await;
    }
}

/// Sends a request, and then one that tells whether the tokens of the first are a debt.
async fn debt_after(fake: &Fake, limit: u32, request: &str) -> (u16, String) {
    let gateway = gated(fake, tokens(limit)).await;
    let first = gateway.raw(keyed(request)).await;
    assert_eq!(status(&first), 200);
    gateway.record().await;
    let next = gateway.raw(keyed(request)).await;
    (status(&next), head(&next))
}

#[tokio::test]
async fn a_stream_and_a_whole_answer_are_charged_by_what_the_engine_counted() {
    let stream = Fake::answering(stream_of(&[ROLE, WORD, FINISH, USAGE, "[DONE]"])).await;
    let answer = r#"{"choices":[{"index":0,"message":{"content":"Hi"},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}"#;
    let whole = Fake::answering(json("200 OK", answer)).await;
    for (fake, request) in [(&stream, post(CHAT, STREAM)), (&whole, post(CHAT, ASK))] {
        // 12 tokens of 6 in a minute: another minute's worth is owed.
        let (status, told) = debt_after(fake, 6, &request).await;
        assert_eq!(status, 429, "{told}");
        assert!(told.contains("x-gateway-error: token_limit"), "{told}");
        let wait = told.split("retry-after: ").nth(1).unwrap().lines().next().unwrap();
        assert!((55..=60).contains(&wait.parse::<u32>().unwrap()), "{told}");
        assert!(told.contains("x-ratelimit-limit-tokens: 6\r\n"), "{told}");
        assert!(told.contains("x-ratelimit-remaining-tokens: 0\r\n"), "{told}");
        assert_eq!(debt_after(fake, 600, &request).await.0, 200);
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_charged_for_its_prompt_and_for_what_came() {
    let fake = Fake::start(|_| {
        let begun = [stream_head(), chunk(ROLE), chunk(WORD), chunk(WORD)].concat();
        vec![Step::Send(begun), Step::AwaitClose]
    })
    .await;
    let gateway = gated(&fake, tokens(2)).await;
    let words = "word ".repeat(100);
    let ask = STREAM.replace("[]", &format!(r#"[{{"role":"user","content":"{words}"}}]"#));
    let mut client = send(&gateway, &post(CHAT, &ask)).await;
    let mut got = Vec::new();
    while got.windows(4).filter(|part| part == b"\"Hi\"").count() < 2 {
        client.read_buf(&mut got).await.unwrap();
    }
    drop(client);
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.observed.usage.input), (Outcome::Cancelled, None));
    let page = gateway.admin("/metrics").await;
    let charged = |kind: &str| {
        value(&page, &format!("tokenweir_tenant_tokens_total{{tenant=\"a\",type=\"{kind}\"}}"))
    };
    assert!((charged("output") - 2.0).abs() < 0.1, "{}", charged("output"));
    // 500 letters are about 125 tokens; nobody knows this replica's better yet.
    assert!((50.0..300.0).contains(&charged("input")), "{}", charged("input"));
    let next = gateway.raw(keyed(&post(CHAT, &ask))).await;
    assert!(head(&next).contains("x-gateway-error: token_limit"), "{}", head(&next));
}

#[tokio::test]
async fn an_answer_tells_what_is_left() {
    let fake = whole().await;
    let limits =
        Limits { requests_per_minute: Some(3), tokens_per_minute: Some(1_000), concurrency: None };
    let gateway = gated(&fake, limited(limits)).await;
    for left in [2, 1, 0] {
        let answer = head(&gateway.raw(keyed(&post(CHAT, ASK))).await);
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
        assert!(answer.contains("x-ratelimit-limit-requests: 3\r\n"), "{answer}");
        assert!(
            answer.contains(&format!("x-ratelimit-remaining-requests: {left}\r\n")),
            "{answer}"
        );
        assert!(answer.contains("x-ratelimit-limit-tokens: 1000"), "{answer}");
    }
    let refused = gateway.raw(keyed(&post(CHAT, ASK))).await;
    assert_eq!(status(&refused), 429);
    let told = head(&refused);
    assert!(told.contains("x-gateway-error: request_limit"), "{told}");
    assert!(told.contains("retry-after: 20") || told.contains("retry-after: 19"), "{told}");
    assert_eq!(fake.seen().len(), 3);
    let listed = super::get("/v1/models");
    assert_eq!(status(&gateway.raw(keyed(&listed)).await), 200, "a list is no inference");
}

#[tokio::test]
async fn made_up_keys_leave_nothing_behind() {
    let fake = whole().await;
    let access: Arc<Access> = access(tenant());
    let setup = Setup { access: access.clone(), ..Setup::default() };
    let gateway = start_with(&[fake.addr], setup).await;
    let series = async || crate::metrics::samples(&gateway.admin("/metrics").await).len();
    let before = series().await;
    for number in 0..500 {
        let request = super::with(&post(CHAT, ASK), &format!("x-api-key: {KEY}{number}"));
        assert_eq!(status(&gateway.raw(request).await), 401);
        gateway.record().await;
    }
    assert_eq!(series().await, before);
    let keys = access.keys().unwrap();
    assert_eq!((keys.len(), keys.labels().count()), (1, 1));
}

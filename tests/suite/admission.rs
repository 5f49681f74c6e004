//! What happens while every replica is full, over real sockets: who waits, who goes first, who is
//! turned away and with what words, and that nothing is left of any of it.

mod engines;

use crate::support::fake::{Fake, Page, Step, json};
use crate::support::gateway::{Running, Setup, body, post, start_with, status, waiting_room};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir::config;
use tokenweir_core::record::{Outcome, Tiers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
/// What a replica says that has a long queue.
const BUSY: &str = "vllm:num_requests_running 8.0\nvllm:num_requests_waiting 60.0\n\
                    vllm:kv_cache_usage_perc 0.5\n";
/// The same replica, when its queue is gone.
const CALM: &str = "vllm:num_requests_running 8.0\nvllm:num_requests_waiting 0.0\n\
                    vllm:kv_cache_usage_perc 0.5\n";

/// Nobody looks a second time, so nothing but the requests themselves tells of a place.
const NEVER: Duration = Duration::from_hours(1);
/// A change of a replica is seen soon.
const SOON: Duration = Duration::from_millis(20);

/// A gateway that has one request at each replica, and this waiting room.
async fn one_at_each(
    fakes: &[&Fake],
    admission: config::Admission,
    look_every: Duration,
) -> Running {
    let addrs: Vec<SocketAddr> = fakes.iter().map(|fake| fake.addr).collect();
    let admission = config::Admission { max_in_flight: Some(1), ..admission };
    let tiers = Tiers {
        header: Some("x-tier".parse().unwrap()),
        names: vec!["gold".into(), "batch".into()],
        keys: Vec::new(),
    };
    let admission = Some(waiting_room(&admission));
    start_with(&addrs, Setup { admission, tiers, look_every, ..Setup::default() }).await
}

/// A replica that answers each request when the test lets it.
async fn held() -> Fake {
    Fake::start(|_| vec![Step::Wait, Step::Send(json("200 OK", "{}"))]).await
}

/// Sends a request with a name and these headers, and does not wait for its answer.
async fn send(gateway: &Running, name: &str, headers: &str) -> TcpStream {
    let request = post(CHAT, &format!(r#"{{"model":"tiny","user":"{name}"}}"#));
    let mut client = gateway.connect().await;
    client
        .write_all(request.replacen("\r\n", &format!("\r\n{headers}"), 1).as_bytes())
        .await
        .unwrap();
    client
}

async fn answer(mut client: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    answer
}

/// Waits until as many requests wait in the room.
pub(crate) async fn until_waiting(gateway: &Running, count: usize) {
    let all = async {
        loop {
            let page = gateway.admin("/status").await;
            let status: Value =
                serde_json::from_str(page.split("\r\n\r\n").nth(1).unwrap()).unwrap();
            let classes = status["queue"].as_array().unwrap();
            let waiting: u64 = classes.iter().map(|it| it["waiting"].as_u64().unwrap()).sum();
            if waiting == count as u64 {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.expect("so many wait");
}

/// Waits until a replica has as many requests.
async fn until_seen(fake: &Fake, count: usize) {
    let all = async {
        while fake.seen().len() < count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.expect("the replica is asked");
}

/// The names of the requests that a replica has had, in order.
fn names(fake: &Fake) -> Vec<String> {
    let name = |body: &[u8]| {
        let body: Value = serde_json::from_slice(body).unwrap();
        body["user"].as_str().unwrap().to_owned()
    };
    fake.seen().iter().map(|seen| name(&seen.body)).collect()
}

/// The value of a header in a raw answer.
fn header(answer: &[u8], name: &str) -> Option<String> {
    let head = String::from_utf8_lossy(answer).to_ascii_lowercase();
    let line =
        head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned));
    line.map(|value| value.trim().to_owned())
}

/// Fails unless the answer is an honest 429 for this reason.
fn assert_is_full(answer: &[u8], reason: &str) {
    assert_eq!(status(answer), 429);
    assert_eq!(header(answer, "x-gateway-error").as_deref(), Some(reason));
    let seconds: u32 = header(answer, "retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds));
    let body: Value = serde_json::from_slice(&body(answer).0).unwrap();
    assert_eq!(body["error"]["type"], "TooManyRequestsError");
    assert_eq!(body["error"]["code"], 429);
    assert!(
        body["error"]["message"].as_str().unwrap().contains(&format!("retry after {seconds} s"))
    );
}

/// Fails unless everything that is counted up and down is down.
async fn assert_nothing_is_left(gateway: &Running) {
    until_waiting(gateway, 0).await;
    for backend in gateway.pool.backends().iter() {
        while backend.in_flight() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(backend.ledger.own().tokens, 0);
    }
    let page = gateway.admin("/metrics").await;
    assert!(page.contains("\ntokenweir_requests_in_flight 0\n"));
    let queues = page.lines().filter(|line| line.starts_with("tokenweir_queue_requests{"));
    assert!(queues.clone().count() > 0 && queues.clone().all(|line| line.ends_with(" 0")));
    gateway.assert_no_more_records().await;
}

#[tokio::test]
async fn a_request_that_waits_takes_the_replica_that_is_free_first() {
    let (one, other) = (held().await, held().await);
    let gateway = one_at_each(&[&one, &other], config::Admission::default(), NEVER).await;
    let first = send(&gateway, "first", "").await;
    let second = send(&gateway, "second", "").await;
    until_seen(&one, 1).await;
    until_seen(&other, 1).await;
    let late = send(&gateway, "late", "").await;
    until_waiting(&gateway, 1).await;
    other.go();
    until_seen(&other, 2).await;
    assert_eq!(names(&other)[1], "late");
    one.go();
    other.go();
    for client in [first, second, late] {
        assert_eq!(status(&answer(client).await), 200);
    }
    let records = [gateway.record().await, gateway.record().await, gateway.record().await];
    let queued: Vec<_> = records.iter().filter(|record| record.queue_wait().is_some()).collect();
    assert_eq!(queued.len(), 1, "only one has waited");
    assert_eq!(queued[0].backend().unwrap().as_str(), other.addr.to_string());
    let wait = queued[0].queue_wait().unwrap();
    assert!(wait > Duration::ZERO && queued[0].overhead().unwrap() + wait < queued[0].duration());
    let page = gateway.admin("/metrics").await;
    assert!(page.contains("tokenweir_queue_wait_seconds_count{tier=\"\"} 1\n"));
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_gives_its_place_back() {
    let fake = held().await;
    let room = config::Admission { room: 1, ..config::Admission::default() };
    let gateway = one_at_each(&[&fake], room, NEVER).await;
    let first = send(&gateway, "first", "").await;
    until_seen(&fake, 1).await;
    for _ in 0..3 {
        let leaves = send(&gateway, "leaves", "").await;
        until_waiting(&gateway, 1).await;
        drop(leaves);
        let record = gateway.record().await;
        assert_eq!((record.outcome, record.phase()), (Outcome::Cancelled, "queued"));
        assert!(record.queue_wait().is_some());
        until_waiting(&gateway, 0).await;
    }
    fake.go();
    assert_eq!(status(&answer(first).await), 200);
    gateway.record().await;
    assert_eq!(names(&fake), ["first"], "nobody was sent who had left");
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test]
async fn beyond_the_room_a_request_is_refused_with_a_reason_and_a_time() {
    let fake = held().await;
    let room = config::Admission { room: 1, ..config::Admission::default() };
    let gateway = one_at_each(&[&fake], room, NEVER).await;
    let first = send(&gateway, "first", "").await;
    until_seen(&fake, 1).await;
    let second = send(&gateway, "second", "").await;
    until_waiting(&gateway, 1).await;
    assert_is_full(&answer(send(&gateway, "third", "").await).await, "saturated");
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.refusal), (Outcome::Rejected, Some("saturated")));
    assert_eq!(record.queue_wait(), None);
    for client in [first, second] {
        fake.go();
        assert_eq!(status(&answer(client).await), 200);
        gateway.record().await;
    }
    let page = gateway.admin("/metrics").await;
    assert!(page.contains("tokenweir_shed_total{reason=\"saturated\"} 1\n"));
    assert!(page.contains("tokenweir_refusals_total{reason=\"saturated\"} 1\n"));
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test]
async fn a_request_that_waits_too_long_is_refused() {
    let fake = held().await;
    let max_wait = Duration::from_millis(40);
    let room = config::Admission { max_wait, ..config::Admission::default() };
    let gateway = one_at_each(&[&fake], room, NEVER).await;
    let first = send(&gateway, "first", "").await;
    until_seen(&fake, 1).await;
    assert_is_full(&answer(send(&gateway, "late", "").await).await, "queue_timeout");
    let record = gateway.record().await;
    assert_eq!(record.refusal, Some("queue_timeout"));
    assert!(record.queue_wait().unwrap() >= max_wait);
    fake.go();
    assert_eq!(status(&answer(first).await), 200);
    gateway.record().await;
    assert_eq!(names(&fake), ["first"]);
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test]
async fn a_higher_class_goes_first_and_takes_the_place_of_a_lower_one_in_a_full_room() {
    let fake = held().await;
    let classes = ["gold", "default", "batch"].map(str::to_owned).to_vec();
    let room = config::Admission { room: 3, classes, ..config::Admission::default() };
    let gateway = one_at_each(&[&fake], room, NEVER).await;
    let first = send(&gateway, "first", "").await;
    until_seen(&fake, 1).await;
    let mut clients = vec![first];
    for (waiting, (name, tier)) in
        [("batch", "x-tier: batch\r\n"), ("plain", ""), ("gold", "x-tier: gold\r\n")]
            .into_iter()
            .enumerate()
    {
        clients.push(send(&gateway, name, tier).await);
        until_waiting(&gateway, waiting + 1).await;
    }
    let second = send(&gateway, "gold 2", "x-tier: gold\r\n").await;
    let shed = clients.remove(1);
    assert_is_full(&answer(shed).await, "shed");
    let record = gateway.record().await;
    assert_eq!((record.tier.as_str(), record.refusal), ("batch", Some("shed")));
    assert!(record.queue_wait().is_some());
    clients.push(second);
    for number in 1..=4 {
        until_seen(&fake, number).await;
        fake.go();
    }
    for client in clients {
        assert_eq!(status(&answer(client).await), 200);
        gateway.record().await;
    }
    assert_eq!(names(&fake), ["first", "gold", "gold 2", "plain"]);
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test]
async fn a_tenant_that_floods_waits_behind_itself_whether_told_by_token_or_by_header() {
    for (tenant_header, of) in [(None, "authorization: Bearer "), (Some("x-tenant"), "x-tenant: ")]
    {
        let fake = held().await;
        let tenant_header = tenant_header.map(str::to_owned);
        let room = config::Admission { tenant_header, ..config::Admission::default() };
        let gateway = one_at_each(&[&fake], room, NEVER).await;
        let mut clients = vec![send(&gateway, "first", "").await];
        until_seen(&fake, 1).await;
        for (waiting, (name, tenant)) in
            [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")].into_iter().enumerate()
        {
            clients.push(send(&gateway, name, &format!("{of}{tenant}\r\n")).await);
            until_waiting(&gateway, waiting + 1).await;
        }
        for number in 1..=5 {
            until_seen(&fake, number).await;
            fake.go();
        }
        for client in clients {
            assert_eq!(status(&answer(client).await), 200);
            gateway.record().await;
        }
        assert_eq!(names(&fake), ["first", "a1", "b1", "a2", "a3"], "{of}");
        assert_nothing_is_left(&gateway).await;
    }
}

#[tokio::test]
async fn a_page_that_tells_of_room_lets_in_who_waits() {
    let fake = Fake::answering(json("200 OK", "{}")).await;
    fake.set_metrics(Some(Page::of(BUSY)));
    let gateway = start_with(&[fake.addr], Setup::default()).await;
    let client = send(&gateway, "waits", "").await;
    until_waiting(&gateway, 1).await;
    assert_eq!(fake.seen().len(), 0);
    fake.set_metrics(Some(Page::of(CALM)));
    assert_eq!(status(&answer(client).await), 200);
    assert!(gateway.record().await.queue_wait().is_some());
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test]
async fn a_replica_that_comes_up_takes_who_waits() {
    let (full, down) = (held().await, Fake::answering(json("200 OK", "{}")).await);
    down.set_healthy(false);
    let gateway = one_at_each(&[&full, &down], config::Admission::default(), SOON).await;
    let first = send(&gateway, "first", "").await;
    until_seen(&full, 1).await;
    let waits = send(&gateway, "waits", "").await;
    until_waiting(&gateway, 1).await;
    down.set_healthy(true);
    assert_eq!(status(&answer(waits).await), 200);
    assert_eq!(names(&down), ["waits"]);
    full.go();
    assert_eq!(status(&answer(first).await), 200);
    gateway.record().await;
    gateway.record().await;
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test]
async fn who_waits_is_told_at_once_when_the_last_replica_is_down() {
    let fake = held().await;
    let gateway = one_at_each(&[&fake], config::Admission::default(), SOON).await;
    let first = send(&gateway, "first", "").await;
    until_seen(&fake, 1).await;
    let waits = send(&gateway, "waits", "").await;
    until_waiting(&gateway, 1).await;
    fake.set_healthy(false);
    let refused = answer(waits).await;
    assert_eq!(status(&refused), 503);
    assert_eq!(header(&refused, "x-gateway-error").as_deref(), Some("no_backend"));
    assert_eq!(header(&refused, "retry-after").as_deref(), Some("1"));
    fake.go();
    assert_eq!(status(&answer(first).await), 200);
    gateway.record().await;
    gateway.record().await;
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test]
async fn a_request_that_was_admitted_and_lost_its_replica_does_not_wait_again() {
    let (full, gone) = (held().await, held().await);
    let gateway = one_at_each(&[&full, &gone], config::Admission::default(), NEVER).await;
    // Nobody looks, so nobody sees it.
    drop(gone);
    // Of equals the first is asked first.
    let first = send(&gateway, "first", "").await;
    until_seen(&full, 1).await;
    let second = send(&gateway, "second", "").await;
    until_seen(&full, 2).await;
    for client in [first, second] {
        full.go();
        assert_eq!(status(&answer(client).await), 200);
    }
    for _ in 0..2 {
        assert_eq!(gateway.record().await.queue_wait(), None);
    }
    assert_nothing_is_left(&gateway).await;
}

#[tokio::test]
async fn with_admission_off_everything_is_sent_at_once() {
    let fake = held().await;
    fake.set_metrics(Some(Page::of(BUSY)));
    let setup = Setup { admission: None, ..Setup::default() };
    let gateway = start_with(&[fake.addr], setup).await;
    let mut clients = Vec::new();
    for number in 1..=3 {
        clients.push(send(&gateway, "now", "").await);
        until_seen(&fake, number).await;
    }
    for client in clients {
        fake.go();
        drop(client);
        assert_eq!(gateway.record().await.queue_wait(), None);
    }
    assert!(gateway.admin("/status").await.contains("\"queue\":[]"));
}

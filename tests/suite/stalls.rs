//! Streams that fall silent, seen while they are silent: whose silence it is, what is told of it,
//! and how it ends.

use crate::support::fake::{
    FINISH, Fake, ROLE, Step, USAGE, WORD, chunk, framed, stream_head, stream_of,
};
use crate::support::gateway::{Running, Setup, body, post, start_with};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::time::{Duration, Instant};
use tokenweir_core::observe::{self, Observer, StallLimits};
use tokenweir_core::openai::Api;
use tokenweir_core::record::{EndedBy, Outcome, Stall, Timings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const CHAT: &str = "/v1/chat/completions";
const ASK: &str = r#"{"model":"tiny","stream":true,"messages":[]}"#;
const FLOOR: Duration = Duration::from_millis(50);

/// A gateway to which a silence of [`FLOOR`] is a stall.
async fn watching(fake: &Fake) -> Running {
    watching_with(fake, StallLimits::default(), false).await
}

async fn watching_with(fake: &Fake, limits: StallLimits, injects_usage: bool) -> Running {
    let stalls = StallLimits { floor: FLOOR, ..limits };
    let observation = observe::Settings { stalls, ..observe::Settings::default() };
    start_with(&[fake.addr], Setup { injects_usage, observation, ..Setup::default() }).await
}

/// A stream that has begun, waits for the test, and ends.
fn paused(begun: &[&str], rest: &[&str]) -> Vec<Step> {
    let begun = begun.iter().flat_map(|event| chunk(event));
    let rest = rest.iter().flat_map(|event| chunk(event));
    let end = b"0\r\n\r\n".to_vec();
    vec![
        Step::Send(stream_head().into_iter().chain(begun).collect()),
        Step::Wait,
        Step::Send(rest.chain(end).collect()),
    ]
}

/// A request that says what its stream is to be.
fn ask(user: &str) -> String {
    post(CHAT, &format!(r#"{{"model":"tiny","stream":true,"user":"{user}"}}"#))
}

async fn value(gateway: &Running, name: &str) -> u64 {
    let page = gateway.admin("/metrics").await;
    let is_sample = |line: &&str| line.starts_with(&format!("{name}{{"));
    let line = page.lines().find(is_sample).expect("the series is there");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Streams that are silent now, and silences since the start.
async fn stalls(gateway: &Running) -> [u64; 2] {
    let silent = value(gateway, "tokenweir_streams_stalled").await;
    [silent, value(gateway, "tokenweir_stalls_total").await]
}

/// Waits until as many streams are silent.
async fn until_silent(gateway: &Running, count: u64) {
    let seen = async { while stalls(gateway).await[0] < count {} };
    tokio::time::timeout(Duration::from_secs(20), seen).await.expect("the silence is seen");
}

async fn send(gateway: &Running, request: &str) -> TcpStream {
    let mut client = gateway.connect().await;
    client.write_all(request.as_bytes()).await.unwrap();
    client
}

async fn read_until(client: &mut TcpStream, wanted: &str) -> Vec<u8> {
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains(wanted) {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "ended before {wanted}");
    }
    answer
}

fn is_told(stall: &Stall) {
    assert!(stall.seen - stall.since >= FLOOR);
    assert!(stall.until.is_some_and(|until| until >= stall.seen));
    let condition = stall.condition;
    assert_eq!((condition.running, condition.waiting), (Some(1), Some(0)));
    assert_eq!(condition.kv_usage, Some(0.25));
}

#[tokio::test]
async fn a_silence_is_told_while_it_lasts_and_is_over_when_the_stream_goes_on() {
    let fake = Fake::start(|_| paused(&[ROLE, WORD], &[WORD, FINISH, USAGE, "[DONE]"])).await;
    let gateway = watching(&fake).await;
    let mut client = send(&gateway, &post(CHAT, ASK)).await;
    until_silent(&gateway, 1).await;
    assert_eq!(stalls(&gateway).await, [1, 1]);
    fake.go();
    client.read_to_end(&mut Vec::new()).await.unwrap();
    let record = gateway.record().await;
    assert_eq!(record.outcome, Outcome::Ok);
    let [stall] = &record.observed.stalls[..] else { panic!("{:?}", record.observed.stalls) };
    is_told(stall);
    assert_eq!(Some(stall.since), record.timings.first_output);
    assert_eq!(stall.until, record.timings.last_output);
    assert_eq!(stalls(&gateway).await, [0, 1], "silent no more, and counted once");
}

#[tokio::test]
async fn a_silence_that_no_more_output_ends_is_on_the_record_too() {
    for rest in [&[FINISH, "[DONE]"][..], &[r#"{"error":{"message":"dead"}}"#, "[DONE]"]] {
        let fake = Fake::start(|_| paused(&[ROLE, WORD], rest)).await;
        let gateway = watching(&fake).await;
        let mut client = send(&gateway, &post(CHAT, ASK)).await;
        until_silent(&gateway, 1).await;
        fake.go();
        client.read_to_end(&mut Vec::new()).await.unwrap();
        let record = gateway.record().await;
        let [stall] = &record.observed.stalls[..] else { panic!("{:?}", record.observed.stalls) };
        is_told(stall);
        assert_eq!(stall.until, record.timings.terminal);
        assert_eq!(stalls(&gateway).await, [0, 1]);
    }
}

#[tokio::test]
async fn a_client_that_leaves_during_a_silence_ends_it() {
    let begun = [stream_head(), chunk(ROLE), chunk(WORD)].concat();
    let fake = Fake::start(move |_| vec![Step::Send(begun.clone()), Step::AwaitClose]).await;
    let gateway = watching(&fake).await;
    let client = send(&gateway, &post(CHAT, ASK)).await;
    until_silent(&gateway, 1).await;
    drop(client);
    fake.closed().await;
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.end.by()), (Outcome::Cancelled, EndedBy::Client));
    assert_eq!(record.observed.stalls.len(), 1);
    is_told(&record.observed.stalls[0]);
    assert_eq!(stalls(&gateway).await, [0, 1]);
}

#[tokio::test]
async fn a_silence_that_lasts_too_long_cuts_the_stream_on_both_sides() {
    let begun = [stream_head(), chunk(ROLE), chunk(WORD)].concat();
    let fake = Fake::start(move |_| vec![Step::Send(begun.clone()), Step::AwaitClose]).await;
    let limits = StallLimits { abort_after: Some(2 * FLOOR), ..StallLimits::default() };
    let gateway = watching_with(&fake, limits, false).await;
    let answer = gateway.post(CHAT, ASK).await;
    let (bytes, is_whole) = body(&answer);
    assert_eq!(String::from_utf8(bytes).unwrap(), format!("data: {ROLE}\n\ndata: {WORD}\n\n"));
    assert!(!is_whole, "a cut stream must not end cleanly");
    fake.closed().await;
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.ending()), (Outcome::Timeout, "timeout_idle"));
    assert_eq!((record.end.by(), record.error_type()), (EndedBy::Gateway, Some("timeout")));
    assert_eq!(record.observed.stalls.len(), 1);
    assert_eq!(stalls(&gateway).await, [0, 1]);
    assert_eq!(gateway.pool.backends()[0].in_flight(), 0);
}

#[tokio::test]
async fn a_cut_loses_no_byte_that_was_kept_back() {
    let (begun, part) = (format!("data: {WORD}\n\n"), "data: {\"choices\":[],");
    let sent = [stream_head(), framed(&[&begun, part])].concat();
    let fake = Fake::start(move |_| vec![Step::Send(sent.clone()), Step::AwaitClose]).await;
    let limits = StallLimits { abort_after: Some(FLOOR), ..StallLimits::default() };
    let gateway = watching_with(&fake, limits, true).await;
    let (bytes, is_whole) = body(&gateway.post(CHAT, ASK).await);
    assert_eq!(String::from_utf8(bytes).unwrap(), format!("{begun}{part}"));
    assert!(!is_whole);
    assert_eq!(gateway.record().await.ending(), "timeout_idle");
}

#[tokio::test]
async fn what_the_gateway_keeps_back_is_no_slowness_of_the_client() {
    let usage = format!("data: {USAGE}\n\n");
    let begun = format!("data: {WORD}\n\n");
    let sent = [stream_head(), framed(&[&begun, &usage[..20]])].concat();
    let rest = [framed(&[&usage[20..]]), chunk(WORD), chunk(FINISH), chunk("[DONE]")].concat();
    let rest = [rest, b"0\r\n\r\n".to_vec()].concat();
    let fake =
        Fake::start(move |_| vec![Step::Send(sent.clone()), Step::Wait, Step::Send(rest.clone())])
            .await;
    let gateway = watching_with(&fake, StallLimits::default(), true).await;
    // A body of HTTP/2 is asked once and then left alone until it has more.
    let client: Client<_, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let request = Request::post(format!("http://{}{CHAT}", gateway.addr));
    let answer = client.request(request.body(Full::from(ASK)).unwrap()).await.unwrap();
    // The replica owes the rest, so its silence is a stall.
    until_silent(&gateway, 1).await;
    fake.go();
    answer.into_body().collect().await.unwrap();
    let record = gateway.record().await;
    assert_eq!(record.observed.stalls.len(), 1);
    assert!(record.observed.write_stall < FLOOR, "{:?}", record.observed.write_stall);
    assert_eq!(record.observed.gaps.count(), 1);
}

#[tokio::test]
async fn silence_before_the_first_output_and_after_the_last_event_is_no_stall() {
    let fake = Fake::start(|seen| {
        let is_asked = |user: &str| String::from_utf8_lossy(&seen.body).contains(user);
        let begun: &[&str] = match () {
            () if is_asked("before") => &[ROLE],
            () if is_asked("after") => &[ROLE, WORD, FINISH, "[DONE]"],
            () => &[ROLE, WORD],
        };
        let mut steps = paused(begun, &[]);
        steps.truncate(1);
        steps.push(Step::AwaitClose);
        steps
    })
    .await;
    let gateway = watching(&fake).await;
    let before = send(&gateway, &ask("before")).await;
    while fake.seen().is_empty() {
        tokio::task::yield_now().await;
    }
    let mut after = send(&gateway, &ask("after")).await;
    read_until(&mut after, "[DONE]").await;
    // It is silent last of the three, so they have all been looked at when its silence is seen.
    let _between = send(&gateway, &ask("between")).await;
    until_silent(&gateway, 1).await;
    assert_eq!(stalls(&gateway).await, [1, 1]);
    drop(before);
    drop(after);
    for _ in 0..2 {
        assert!(gateway.record().await.observed.stalls.is_empty());
    }
}

/// A replica with one stream that is more than sockets hold, and others that fall silent.
async fn flooding() -> Fake {
    let long = WORD.replace("Hi", &"x".repeat(64 << 10));
    let flood: Vec<&str> = std::iter::repeat_n(&*long, 512).collect();
    let flood = stream_of(&[&flood[..], &[FINISH, USAGE, "[DONE]"]].concat());
    Fake::start(move |seen| {
        if String::from_utf8_lossy(&seen.body).contains("flood") {
            return vec![Step::Send(flood.clone())];
        }
        paused(&[ROLE, WORD], &[FINISH, "[DONE]"])
    })
    .await
}

/// A client that asks for the flood and does not read it, until another stream has been silent for
/// long enough to be seen.
async fn hold_up(fake: &Fake, gateway: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut slow = socket.connect(gateway.addr).await.unwrap();
    slow.write_all(ask("flood").as_bytes()).await.unwrap();
    slow.readable().await.unwrap();
    let mut other = send(gateway, &ask("other")).await;
    until_silent(gateway, 1).await;
    assert_eq!(stalls(gateway).await, [1, 1], "the other one only");
    fake.go();
    other.read_to_end(&mut Vec::new()).await.unwrap();
    assert_eq!(gateway.record().await.observed.stalls.len(), 1);
    slow
}

#[tokio::test]
async fn a_client_that_does_not_read_is_no_stall_and_its_slowness_is_not_the_replicas() {
    let fake = flooding().await;
    let gateway = watching(&fake).await;
    let mut slow = hold_up(&fake, &gateway).await;
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).await.unwrap();
    assert!(body(&answer).1);
    let record = gateway.record().await;
    let observed = &record.observed;
    assert_eq!((record.outcome, observed.output_events), (Outcome::Ok, 512));
    assert!(observed.stalls.is_empty());
    assert!(observed.write_stall > Duration::ZERO);
    let gaps = Duration::from_secs_f64(observed.gaps.sum());
    assert!(gaps + observed.write_stall <= record.duration(), "no time is counted twice");
}

#[tokio::test]
async fn a_client_that_does_not_read_and_then_leaves_was_slow_until_it_left() {
    let fake = flooding().await;
    let gateway = watching(&fake).await;
    drop(hold_up(&fake, &gateway).await);
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.end.by()), (Outcome::Cancelled, EndedBy::Client));
    assert!(record.observed.stalls.is_empty());
    assert!(record.observed.write_stall > Duration::ZERO);
}

#[test]
fn a_gap_in_which_the_client_held_the_stream_up_is_no_gap_of_the_replica() {
    let begin = Instant::now();
    let at = |millis| begin + Duration::from_millis(millis);
    let mut timings = Timings::begin(begin);
    let mut observer = Observer::new(Api::Chat);
    observer.on_head("text/event-stream", false);
    let word = format!("data: {WORD}\n\n");
    let mut word_at = |observer: &mut Observer, millis| {
        observer.on_data(word.as_bytes(), at(millis), &mut timings);
    };
    word_at(&mut observer, 10);
    word_at(&mut observer, 20);
    observer.on_held_up(at(20), at(520));
    word_at(&mut observer, 521);
    word_at(&mut observer, 531);
    let observed = observer.into_observed();
    assert_eq!(observed.write_stall, Duration::from_millis(500));
    assert_eq!(observed.gaps.count(), 2);
    assert!((observed.gaps.sum() - 0.020).abs() < 1e-9, "{:?}", observed.gaps);
}

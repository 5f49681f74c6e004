//! Stalled streams: the gateway detects a stall while the stream is silent, determines whether the backend or
//! the client causes it, reports it, and detects its end.

use crate::metrics::value;
use crate::support::http2_client;
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Step, USAGE, WORD, begin, chunk, data, event_stream_head,
    framed, paused, stream_of,
};
use crate::support::test_gateway::{
    ASK_STREAM, CHAT, Running, Setup, body, gateway_following_with, gateway_scripted_with, post,
    read_rest, read_until, with_paused_time,
};
use std::time::{Duration, Instant};
use tokenweir_protocol::openai::Api;
use tokenweir_request::observe::{self, ResponseObserver, StallLimits};
use tokenweir_request::record::{Outcome, Stall, TerminationInitiator, Timings};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

const MIN_GAP: Duration = Duration::from_millis(50);

/// Builds the settings of a gateway that treats a silence of [`MIN_GAP`] as a stall.
fn setup(abort_after: Option<Duration>, injects_usage: bool) -> Setup {
    let stalls = StallLimits {
        min_gap: MIN_GAP,
        abort_after,
    };
    let observation = observe::ObservationSettings {
        stalls,
        ..observe::ObservationSettings::default()
    };
    Setup {
        injects_usage,
        observation,
        ..Setup::default()
    }
}

/// Builds a request for a stream. Its field `user` selects the script of the backend.
fn ask(user: &str) -> String {
    post(
        CHAT,
        &format!(r#"{{"model":"tiny","stream":true,"user":"{user}"}}"#),
    )
}

/// Returns how many streams are stalled now, and how many stalls there were since the start of the gateway.
async fn stalls(gateway: &Running) -> [u64; 2] {
    let (page, backend) = (gateway.admin("/metrics").await, &gateway.pool.backends()[0]);
    let series = |name: &str| format!("{name}{{backend=\"{}\"}}", backend.identity.id);
    ["tokenweir_streams_stalled", "tokenweir_stalls_total"]
        .map(|name| value(&page, &series(name)) as u64)
}

/// Waits until at least this many streams are stalled.
async fn until_stalled(gateway: &Running, count: u64) {
    wait_until!(stalls(gateway).await[0] >= count);
}

/// Advances the paused clock until a stream is stalled. Call this only after all streams have begun, because
/// the clock also advances other timers.
async fn stall_by_clock(gateway: &Running) {
    while stalls(gateway).await[0] == 0 {
        tokio::time::advance(2 * MIN_GAP).await;
    }
}

/// Waits until no stream makes progress. The clock is paused and all tasks share one thread, so the gateway
/// answers a request for its metrics page only after all tasks that can run have run.
async fn until_blocked(gateway: &Running) {
    let mut counts = Vec::new();
    while counts.len() < 5
        || !counts
            .iter()
            .rev()
            .take(5)
            .all(|count| Some(count) == counts.last())
    {
        let page = gateway.document("/streams").await;
        counts.push(page["totals"]["output_tokens"].as_u64().unwrap());
    }
}

fn assert_reported(stall: &Stall) {
    assert!(stall.detected_at - stall.last_output_at >= MIN_GAP);
    assert!(
        stall
            .ended_at
            .is_some_and(|until| until >= stall.detected_at)
    );
    let condition = stall.condition;
    assert_eq!((condition.running, condition.waiting), (Some(1), Some(0)));
    assert_eq!(condition.kv_usage, Some(0.25));
}

#[tokio::test]
async fn a_stall_lasts_until_the_next_output() {
    let next_output: fn(&Timings) -> Option<Instant> = |timings| timings.last_output;
    let end: fn(&Timings) -> Option<Instant> = |timings| timings.terminal;
    let error = r#"{"error":{"message":"dead"}}"#;
    for (rest, outcome, ended_at) in [
        (
            &[WORD, FINISH, USAGE, "[DONE]"][..],
            Outcome::Ok,
            next_output,
        ),
        (&[FINISH, "[DONE]"], Outcome::Ok, end),
        (&[error, "[DONE]"], Outcome::StreamError, end),
    ] {
        let steps = paused(&[ROLE, WORD], rest);
        let (fake, gateway) = gateway_following_with(setup(None, false), steps).await;
        let client = gateway.begin(CHAT, ASK_STREAM).await;
        until_stalled(&gateway, 1).await;
        assert_eq!(stalls(&gateway).await, [1, 1], "{rest:?}");
        fake.go();
        read_rest(client).await;
        let record = gateway.record().await;
        assert_eq!(record.outcome, outcome, "{rest:?}");
        let [stall] = &record.observed.stalls[..] else {
            panic!("{:?}", record.observed.stalls)
        };
        assert_reported(stall);
        assert_eq!(
            Some(stall.last_output_at),
            record.timings.first_output,
            "{rest:?}"
        );
        assert_eq!(stall.ended_at, ended_at(&record.timings), "{rest:?}");
        assert_eq!(
            stalls(&gateway).await,
            [0, 1],
            "the stall is over and counted once"
        );
    }
}

#[tokio::test]
async fn a_disconnect_ends_the_stall() {
    let steps = [begin(&[ROLE, WORD]), Step::AwaitClose];
    let (fake, gateway) = gateway_following_with(setup(None, false), steps).await;
    let client = gateway.begin(CHAT, ASK_STREAM).await;
    until_stalled(&gateway, 1).await;
    drop(client);
    fake.closed().await;
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.end.initiator()),
        (Outcome::Cancelled, TerminationInitiator::Client)
    );
    assert_eq!(record.observed.stalls.len(), 1);
    assert_reported(&record.observed.stalls[0]);
    assert_eq!(stalls(&gateway).await, [0, 1]);
}

#[tokio::test]
async fn a_stall_over_the_limit_is_aborted() {
    let steps = [begin(&[ROLE, WORD]), Step::AwaitClose];
    let (fake, gateway) = gateway_following_with(setup(Some(2 * MIN_GAP), false), steps).await;
    let answer = gateway.post(CHAT, ASK_STREAM).await;
    let (bytes, is_whole) = body(&answer);
    assert_eq!(
        String::from_utf8(bytes).unwrap(),
        [ROLE, WORD].map(data).concat()
    );
    assert!(!is_whole, "an aborted stream must not end completely");
    fake.closed().await;
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.ending()),
        (Outcome::Timeout, "timeout_idle")
    );
    assert_eq!(
        (record.end.initiator(), record.error_type()),
        (TerminationInitiator::Gateway, Some("timeout"))
    );
    assert_eq!(record.observed.stalls.len(), 1);
    assert_eq!(stalls(&gateway).await, [0, 1]);
    assert_eq!(gateway.pool.backends()[0].load.in_flight(), 0);
}

#[tokio::test]
async fn an_aborted_stream_delivers_buffered_bytes() {
    let (begun, part) = (data(WORD), "data: {\"choices\":[],");
    let sent = [event_stream_head(), framed(&[&begun, part])].concat();
    let steps = [Step::Send(sent), Step::AwaitClose];
    let (_fake, gateway) = gateway_following_with(setup(Some(MIN_GAP), true), steps).await;
    let (bytes, is_whole) = body(&gateway.post(CHAT, ASK_STREAM).await);
    assert_eq!(String::from_utf8(bytes).unwrap(), format!("{begun}{part}"));
    assert!(!is_whole);
    assert_eq!(gateway.record().await.ending(), "timeout_idle");
}

#[tokio::test]
async fn stalls_with_buffered_bytes_are_not_the_clients() {
    let usage = data(USAGE);
    let begun = data(WORD);
    let sent = [event_stream_head(), framed(&[&begun, &usage[..20]])].concat();
    let rest = [
        framed(&[&usage[20..]]),
        chunk(WORD),
        chunk(FINISH),
        chunk("[DONE]"),
    ]
    .concat();
    let rest = [rest, b"0\r\n\r\n".to_vec()].concat();
    let steps = [Step::Send(sent), Step::Wait, Step::Send(rest)];
    let (fake, gateway) = gateway_following_with(setup(None, true), steps).await;
    // hyper polls an HTTP/2 body once. It polls the body again only after the body has woken its task.
    let mut sender = http2_client::handshake(gateway.connect().await).await;
    // On a slow machine, the task of the client may run late. A paused clock does not count that time.
    with_paused_time(async {
        let answer = http2_client::post(&mut sender, CHAT, ASK_STREAM).await;
        // The backend sends the rest only later, so the silence is a stall.
        stall_by_clock(&gateway).await;
        fake.go();
        http2_client::whole(answer).await;
    })
    .await;
    let record = gateway.record().await;
    assert_eq!(record.observed.stalls.len(), 1);
    assert!(
        record.observed.write_stall < MIN_GAP,
        "{:?}",
        record.observed.write_stall
    );
    assert_eq!(record.observed.inter_chunk_latency.count(), 1);
}

/// Starts a gateway, and a backend with one stream that is larger than the socket buffers. The other streams
/// of the backend stall.
async fn flooding() -> (ScriptedBackend, Running) {
    let long = WORD.replace("Hi", &"x".repeat(64 << 10));
    let flood: Vec<&str> = std::iter::repeat_n(&*long, 512).collect();
    let flood = stream_of(&[&flood[..], &[FINISH, USAGE, "[DONE]"]].concat());
    gateway_scripted_with(setup(None, false), move |request| {
        if String::from_utf8_lossy(&request.body).contains("flood") {
            return vec![Step::Send(flood.clone())];
        }
        paused(&[ROLE, WORD], &[FINISH, "[DONE]"])
    })
    .await
}

/// Starts a client that requests the large stream and does not read it. Then another stream stalls and ends.
/// Returns the slow client after the gateway has detected that stall.
async fn start_slow_client(fake: &ScriptedBackend, gateway: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut slow = socket.connect(gateway.addr).await.unwrap();
    slow.write_all(ask("flood").as_bytes()).await.unwrap();
    slow.readable().await.unwrap();
    until_blocked(gateway).await;
    let mut other = gateway.send(ask("other")).await;
    read_until(&mut other, "Hi").await;
    stall_by_clock(gateway).await;
    assert_eq!(
        stalls(gateway).await,
        [1, 1],
        "only the other stream is stalled"
    );
    fake.go();
    read_rest(other).await;
    assert_eq!(gateway.record().await.observed.stalls.len(), 1);
    slow
}

#[tokio::test]
async fn a_slow_client_is_no_stall() {
    let (fake, gateway) = flooding().await;
    let answer =
        with_paused_time(async { read_rest(start_slow_client(&fake, &gateway).await).await });
    assert!(body(&answer.await).1);
    let record = gateway.record().await;
    let observed = &record.observed;
    assert_eq!((record.outcome, observed.output_events), (Outcome::Ok, 512));
    assert!(observed.stalls.is_empty());
    assert!(observed.write_stall > Duration::ZERO);
    let gaps = Duration::from_secs_f64(observed.inter_chunk_latency.sum());
    assert!(
        gaps + observed.write_stall <= record.duration(),
        "no time is counted twice"
    );
}

#[tokio::test]
async fn slowness_counts_until_the_disconnect() {
    let (fake, gateway) = flooding().await;
    drop(with_paused_time(start_slow_client(&fake, &gateway)).await);
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.end.initiator()),
        (Outcome::Cancelled, TerminationInitiator::Client)
    );
    assert!(record.observed.stalls.is_empty());
    assert!(record.observed.write_stall > Duration::ZERO);
}

#[test]
fn slow_clients_cause_no_backend_latency() {
    let begin = Instant::now();
    let at = |millis| begin + Duration::from_millis(millis);
    let mut timings = Timings::begin(begin);
    let mut observer = ResponseObserver::new(Api::Chat);
    observer.on_head("text/event-stream", false);
    let word = data(WORD);
    let mut word_at = |observer: &mut ResponseObserver, millis| {
        observer.on_data(word.as_bytes(), at(millis), &mut timings);
    };
    word_at(&mut observer, 10);
    word_at(&mut observer, 20);
    observer.on_write_stall(at(20), at(520));
    word_at(&mut observer, 521);
    word_at(&mut observer, 531);
    let observed = observer.into_observed();
    assert_eq!(observed.write_stall, Duration::from_millis(500));
    assert_eq!(observed.inter_chunk_latency.count(), 2);
    assert!(
        (observed.inter_chunk_latency.sum() - 0.020).abs() < 1e-9,
        "{:?}",
        observed.inter_chunk_latency
    );
}

//! Backends that fail at random, clients that disconnect at random, and requests that wait for capacity. Every
//! request ends and has one record. The gateway adds no complete end to a truncated response. No state remains
//! in the gateway.

use crate::admission::assert_no_state_left;
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Seen, Step, WORD, json, stream_of,
};
use crate::support::test_gateway::{
    ASK, CHAT, Running, Setup, WHOLE, admission_settings, body, post, send_to, start_before, status,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokenweir::config::AdmissionConfig;
use tokenweir_request::observe::{self, StallLimits};
use tokenweir_request::record::{Outcome, RequestRecord};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

/// Number of requests. The environment variable `CHAOS` overrides it.
const REQUESTS: usize = 600;
const CONCURRENT_REQUESTS: usize = 24;

/// Sends the request with this number. Returns whether the response was complete. `None`: the client
/// disconnected during the request, as the seed decides.
async fn send_request(gateway: SocketAddr, number: usize, seed: u64) -> Option<bool> {
    let mut random = fastrand::Rng::with_seed(seed ^ number as u64);
    let is_stream = random.bool();
    let request_body = serde_json::json!({
        "model": "tiny", "stream": is_stream,
        "messages": [{ "role": "user", "content": format!("{number} {}", "x ".repeat(random.usize(..200))) }],
    });
    let mut client = send_to(gateway, post(CHAT, &request_body.to_string())).await;
    let leaves_after = if random.bool() {
        0
    } else {
        random.usize(..2_000)
    };
    let leaves = random.u8(..10) == 0;
    let mut answer = Vec::new();
    while !leaves || answer.len() < leaves_after {
        match client.read_buf(&mut answer).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return Some(is_whole(&answer, is_stream)),
        }
    }
    None
}

/// Whether this response is complete. Only an engine may write the end of a stream.
fn is_whole(answer: &[u8], is_stream: bool) -> bool {
    let (bytes, is_whole) = body(answer);
    if is_whole && is_stream && status(answer) == 200 {
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            text.ends_with("data: [DONE]\n\n"),
            "a stream end that no engine sent: {text}"
        );
    }
    is_whole
}

/// Builds the response of a healthy backend: a response that is no stream, or a stream with a random number
/// of words.
fn whole_response(seen: &Seen, random: &mut fastrand::Rng) -> Vec<u8> {
    if !String::from_utf8_lossy(&seen.body).contains(r#""stream":true"#) {
        return json("200 OK", WHOLE);
    }
    let words = vec![WORD; random.usize(1..60)];
    stream_of(&[&[ROLE][..], &words, &[FINISH, "[DONE]"]].concat())
}

/// Returns the steps of a backend that sends the response `whole`, with a fault in one of three responses.
fn with_random_fault(whole: Vec<u8>, random: &mut fastrand::Rng) -> Vec<Step> {
    let error = |status: &str| vec![Step::Send(json(status, "{}")), Step::Close];
    match random.u8(..27) {
        0 => vec![Step::AwaitClose],
        1..=3 => {
            let sent = &whole[..random.usize(..3_000).min(whole.len())];
            vec![
                Step::Send(sent.into()),
                if random.bool() {
                    Step::Reset
                } else {
                    Step::Close
                },
            ]
        }
        4 => {
            let pieces = whole.chunks(7).map(|piece| Step::Send(piece.into()));
            pieces
                .flat_map(|piece| [piece, Step::YieldTurns(1)])
                .collect()
        }
        5 => error("429 Too Many Requests"),
        6 => error("500 Internal Server Error"),
        7 => error("503 Service Unavailable"),
        8 => vec![
            Step::Send(b"\x16\x03\x01 what is this\r\n\r\n".to_vec()),
            Step::Close,
        ],
        _ => vec![Step::Send(whole)],
    }
}

/// Starts three backends and a gateway in front of them. The backends fail at random while `is_faulty` is
/// set. Their capacity is less than [`CONCURRENT_REQUESTS`], so requests wait in the queue while responses
/// hang.
async fn start(seed: u64, is_faulty: &Arc<AtomicBool>) -> (Vec<ScriptedBackend>, Running) {
    let mut backends = Vec::new();
    for place in 0..3 {
        let is_faulty = is_faulty.clone();
        let script = move |seen: &Seen| {
            let seed = seed ^ (place << 32) ^ ((seen.number as u64) << 8);
            let mut random = fastrand::Rng::with_seed(seed);
            let whole = whole_response(seen, &mut random);
            if is_faulty.load(Ordering::SeqCst) {
                with_random_fault(whole, &mut random)
            } else {
                vec![Step::Send(whole)]
            }
        };
        backends.push(ScriptedBackend::start(script).await);
    }
    let second = Duration::from_secs(1);
    let stalls = StallLimits {
        abort_after: Some(second),
        min_gap: second,
    };
    let admission = AdmissionConfig {
        max_in_flight: Some(4),
        queue_capacity: 8,
        max_wait: second,
        ..AdmissionConfig::default()
    };
    let setup = Setup {
        admission: Some(admission_settings(&admission)),
        first_output: Some(2 * second),
        header_timeout: 2 * second,
        observation: observe::ObservationSettings {
            stalls,
            ..Default::default()
        },
        ..Setup::default()
    };
    let gateway = start_before(&backends, setup).await;
    (backends, gateway)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_ends_once_without_leftovers() {
    let requests = std::env::var("CHAOS").map_or(REQUESTS, |count| count.parse().unwrap());
    let seed = std::env::var("CHAOS_SEED").map_or(9, |seed| seed.parse().unwrap());
    let is_faulty = Arc::new(AtomicBool::new(true));
    let (_backends, gateway) = start(seed, &is_faulty).await;
    let (mut open, mut outcomes) = (JoinSet::new(), Vec::new());
    for number in 0..requests {
        if open.len() >= CONCURRENT_REQUESTS {
            outcomes.push(open.join_next().await.unwrap().unwrap());
        }
        open.spawn(send_request(gateway.addr, number, seed));
    }
    outcomes.extend(open.join_all().await);
    let mut records: Vec<RequestRecord> = Vec::new();
    for _ in 0..requests {
        records.push(gateway.record().await);
    }
    let count = |wanted: &dyn Fn(&RequestRecord) -> bool| {
        records.iter().filter(|record| wanted(record)).count()
    };
    let left = outcomes
        .iter()
        .filter(|is_whole| is_whole.is_none())
        .count();
    let cut = outcomes
        .iter()
        .filter(|is_whole| **is_whole == Some(false))
        .count();
    assert!(count(&|record| record.outcome == Outcome::Cancelled) <= left);
    assert!(count(&|record| record.gateway_queue_wait().is_some()) > 0);
    assert!(count(&|record| record.refusal == Some("saturated")) > 0);
    // How many requests find the queue full depends on the speed of the machine.
    assert!(count(&|record| record.outcome == Outcome::Ok) > requests / 10);
    let retried = count(&|record| record.attempts.len() > 1);
    println!("{requests} requests: {left} disconnected, {cut} truncated, {retried} retried");
    assert!(retried > 0 && cut > 0);
    assert_no_state_left(&gateway).await;
    is_faulty.store(false, Ordering::SeqCst);
    // A backend that answered 429 or 503 gets no requests for a second.
    wait_until!(status(&gateway.post(CHAT, ASK).await) == 200);
}

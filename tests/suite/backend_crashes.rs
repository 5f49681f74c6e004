//! Crashes backends in every phase of a request, one crash after the other, under load. If a backend crashes
//! before the first output and another one is up, no client notices the crash. If it crashes later, the
//! client sees a truncated stream. Every request has one record, and the gateway keeps no state.

use crate::support::crashable_backend::{CrashPoint, CrashableBackend};
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Step, WORD, chunk, event_stream_head,
};
use crate::support::test_gateway::{CHAT, Setup, body, start_with, status};
use std::collections::HashMap;
use std::sync::Arc;
use tokenweir_gateway::backend::{Backend, Health};
use tokenweir_gateway::proxy::retry;
use tokenweir_request::record::Outcome;

/// Number of crashes. The environment variable `FAULTS` overrides it.
const CRASH_COUNT: usize = 60;
const CONCURRENT_REQUESTS: usize = 8;
/// Prompt size in bytes. It is so large that the backend reads the request in several pieces.
const PROMPT_BYTES: usize = 100 << 10;

/// Builds the pieces in which the backend writes its response. Other tasks run between two pieces.
fn pieces() -> Vec<Vec<u8>> {
    let events = [ROLE, WORD, WORD, WORD, FINISH, "[DONE]"];
    let events = events.iter().map(|event| chunk(event));
    [event_stream_head()]
        .into_iter()
        .chain(events)
        .chain([b"0\r\n\r\n".to_vec()])
        .collect()
}

/// The points at which a backend crashes, each with the name of the phase of the request. `None`: the backend
/// is down before the request and refuses the connection.
fn crash_points() -> Vec<(&'static str, Option<CrashPoint>)> {
    let lengths: Vec<usize> = pieces().iter().map(Vec::len).collect();
    let after = |count: usize| lengths[..count].iter().sum::<usize>();
    vec![
        ("connect", None),
        ("request head", Some(CrashPoint::Asked(40))),
        ("upload", Some(CrashPoint::Asked(PROMPT_BYTES / 2))),
        ("response head", Some(CrashPoint::Answered(1))),
        ("half of the head", Some(CrashPoint::Answered(30))),
        ("prefill", Some(CrashPoint::Answered(after(1)))),
        ("first event", Some(CrashPoint::Answered(after(2)))),
        (
            "inside the first output",
            Some(CrashPoint::Answered(after(2) + 60)),
        ),
        ("first output", Some(CrashPoint::Answered(after(3)))),
        ("mid-stream", Some(CrashPoint::Answered(after(4) + 5))),
        ("after the finish", Some(CrashPoint::Answered(after(6)))),
        ("last byte", Some(CrashPoint::Answered(after(8) - 1))),
    ]
}

/// Starts a backend that sends its response in pieces with random pauses.
async fn start_backend(seed: u64) -> ScriptedBackend {
    ScriptedBackend::start(move |seen| {
        let mut random = fastrand::Rng::with_seed(seed ^ seen.number as u64);
        let turns = |random: &mut fastrand::Rng| Step::YieldTurns(random.usize(..40));
        pieces()
            .into_iter()
            .flat_map(|piece| [turns(&mut random), Step::Send(piece)])
            .collect()
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashes_truncate_only_streams_with_output() {
    let crash_count = std::env::var("FAULTS").map_or(CRASH_COUNT, |count| count.parse().unwrap());
    let servers = [
        start_backend(1).await,
        start_backend(2).await,
        start_backend(3).await,
    ];
    let mut backends = Vec::new();
    for server in &servers {
        backends.push(CrashableBackend::in_front_of(server.addr));
    }
    let addresses: Vec<_> = backends.iter().map(|backend| backend.addr).collect();
    // The retry budget never limits retries here, because the test crashes backends several times per second.
    let retry = retry::RetrySettings {
        budget_ratio: 1.0,
        min_retries_per_second: 1_000,
        ..Default::default()
    };
    let gateway = start_with(
        &addresses,
        Setup {
            retry,
            ..Setup::default()
        },
    )
    .await;
    let whole: Vec<u8> = pieces().concat();
    let whole = body(&whole).0;
    let mut random = fastrand::Rng::with_seed(6);
    let mut outcomes_by_phase: HashMap<&str, [usize; 2]> = HashMap::new();
    for number in 0..crash_count {
        let (phase, crash_point) = crash_points()[number % crash_points().len()];
        let index = random.usize(..backends.len());
        match crash_point {
            Some(crash_point) => backends[index].set_crash_point(crash_point),
            None => backends[index].crash().await,
        }
        let responses = (0..CONCURRENT_REQUESTS).map(|one| {
            let prompt = format!("{number} {one} {}", "x".repeat(PROMPT_BYTES));
            let request = serde_json::json!({
                "model": "tiny", "stream": true,
                "messages": [{ "role": "user", "content": prompt }],
            });
            let gateway = &gateway;
            async move { gateway.post(CHAT, &request.to_string()).await }
        });
        let answers = futures_util::future::join_all(responses).await;
        for answer in answers {
            assert_eq!(
                status(&answer),
                200,
                "{phase}: {}",
                String::from_utf8_lossy(&answer)
            );
            let (bytes, is_whole) = body(&answer);
            assert!(
                whole.starts_with(&bytes),
                "{phase}: bytes that no backend sent"
            );
            let has_output = String::from_utf8_lossy(&bytes).contains(WORD);
            assert!(
                has_output,
                "{phase}: a truncation before the first output reached a client"
            );
            assert!(
                !is_whole || bytes == whole,
                "{phase}: a complete end of a truncated stream"
            );
            outcomes_by_phase.entry(phase).or_default()[usize::from(is_whole)] += 1;
        }
        backends[index].crash().await;
        backends[index].restart();
        let is_up = |backend: &Arc<Backend>| backend.health.state().health == Health::Up;
        wait_until!(gateway.pool.backends().iter().all(is_up));
    }
    let mut outcomes = [0, 0];
    for _ in 0..crash_count * CONCURRENT_REQUESTS {
        let record = gateway.record().await;
        assert!(
            matches!(record.outcome, Outcome::Ok | Outcome::Truncated),
            "{record:?}"
        );
        outcomes[usize::from(record.outcome == Outcome::Ok)] += 1;
    }
    gateway.assert_no_more_records().await;
    let cut: usize = outcomes_by_phase.values().map(|[cut, _]| cut).sum();
    println!("{outcomes:?} cut and whole, by phase {outcomes_by_phase:?}");
    assert!(cut > 0 && outcomes[1] > cut, "{outcomes:?}");
    assert!(
        gateway
            .pool
            .backends()
            .iter()
            .all(|backend| backend.load.in_flight() == 0)
    );
    assert!(gateway.admin("/status").await.contains(r#""in_flight":0"#));
}

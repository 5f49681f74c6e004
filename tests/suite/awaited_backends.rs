//! Requests for a model that no backend can serve now. They wait in the admission queue until a backend for
//! the model comes, are then sent in the order of the queue, and metrics count them.

use crate::admission::{
    NO_SECOND_SCRAPE, SHORT_SCRAPE_INTERVAL, assert_no_state_left, assert_shed, header, held,
    names, occupied, one_at_each, send, serve_all, until_waiting,
};
use crate::support::crashable_backend::CrashableBackend;
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Step, WORD, json, stream_of,
};
use crate::support::test_gateway::{
    ASK, ASK_STREAM, CHAT, Running, Setup, admission_settings, post, read_rest, read_until,
    start_with, status, tiers, with_lines,
};
use std::net::SocketAddr;
use std::time::Duration;
use tokenweir::config::AdmissionConfig;
use tokenweir_gateway::backend::{Drain, DrainInitiator, Health};
use tokenweir_request::observe::{ObservationSettings, StreamRules};
use tokenweir_request::record::Outcome;
use tokenweir_request::slo::Objective;

/// A maximum wait that no test reaches.
const LONG_WAIT: Duration = Duration::from_hours(1);

/// Builds an admission configuration in which a request waits at most this long for a backend.
fn waiting_for(max_backend_wait: Duration) -> AdmissionConfig {
    AdmissionConfig {
        max_backend_wait: Some(max_backend_wait),
        ..AdmissionConfig::default()
    }
}

/// Starts a backend that answers requests with 200.
async fn up() -> ScriptedBackend {
    ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await
}

/// As [`up`], but the health check of the backend fails until the test changes it.
async fn down() -> ScriptedBackend {
    let fake = up().await;
    fake.set_healthy(false);
    fake
}

/// Builds gateway settings with which a request waits for a backend as long as necessary.
fn long_wait(scrape_interval: Duration) -> Setup {
    let admission = Some(admission_settings(&waiting_for(LONG_WAIT)));
    Setup {
        admission,
        scrape_interval,
        ..Setup::default()
    }
}

/// Starts a gateway that scrapes these backends once at the start. After that, it checks a backend only after
/// a failure.
async fn unscraped(addrs: &[SocketAddr]) -> Running {
    start_with(addrs, long_wait(NO_SECOND_SCRAPE)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiting_requests_are_sent_by_priority_and_age() {
    let fake = down().await;
    let classes = ["gold", "default"].map(str::to_owned).to_vec();
    let admission = AdmissionConfig {
        classes,
        ..waiting_for(LONG_WAIT)
    };
    let gateway = one_at_each(&[&fake], admission, SHORT_SCRAPE_INTERVAL).await;
    let mut clients = Vec::new();
    for (waiting, (name, tier)) in [
        ("a1", ""),
        ("g1", "x-tier: gold\r\n"),
        ("a2", ""),
        ("g2", "x-tier: gold\r\n"),
    ]
    .into_iter()
    .enumerate()
    {
        clients.push(send(&gateway, name, tier).await);
        until_waiting(&gateway, waiting + 1).await;
    }
    for _ in 4..500 {
        clients.push(send(&gateway, "other", "").await);
    }
    until_waiting(&gateway, 500).await;
    let page = gateway.admin("/metrics").await;
    let waiting = |line: &&str| line.starts_with("tokenweir_model_queue_requests{");
    assert!(
        page.lines()
            .filter(waiting)
            .any(|line| line.ends_with(" 500")),
        "{page}"
    );
    assert_eq!(fake.seen().len(), 0);
    fake.set_healthy(true);
    for client in clients {
        assert_eq!(status(&read_rest(client).await), 200);
    }
    for _ in 0..500 {
        let record = gateway.record().await;
        assert_eq!(record.outcome, Outcome::Ok);
        let (waited, queued) = (
            record.backend_wait().unwrap(),
            record.gateway_queue_wait().unwrap(),
        );
        assert!(waited > Duration::ZERO && waited <= queued);
    }
    let served = names(&fake);
    assert_eq!(served[..4], ["g1", "g2", "a1", "a2"]);
    assert_eq!(served.len(), 500);
    let page = gateway.admin("/metrics").await;
    let counted = |line: &&str| line.starts_with("tokenweir_backend_wait_seconds_count{");
    assert!(
        page.lines()
            .filter(counted)
            .any(|line| line.ends_with(" 500")),
        "{page}"
    );
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn an_unknown_model_gets_404_at_once() {
    let up = up().await;
    let gateway = one_at_each(&[&up], waiting_for(LONG_WAIT), SHORT_SCRAPE_INTERVAL).await;
    wait_until!(gateway.pool.routes().models().len() == 1);
    let unknown = gateway
        .post(CHAT, r#"{"model":"unknown","messages":[]}"#)
        .await;
    assert_eq!(status(&unknown), 404);
    up.set_healthy(false);
    wait_until!(!gateway.pool.is_ready());
    let unknown = gateway
        .post(CHAT, r#"{"model":"unknown","messages":[]}"#)
        .await;
    assert_eq!(status(&unknown), 404, "the backend lists other models");
}

#[tokio::test]
async fn queued_requests_survive_the_last_backends_restart() {
    let (fake, gateway, first) = occupied(waiting_for(LONG_WAIT), SHORT_SCRAPE_INTERVAL).await;
    let waits = send(&gateway, "waits", "").await;
    until_waiting(&gateway, 1).await;
    fake.set_healthy(false);
    wait_until!(!gateway.pool.is_ready());
    fake.go();
    assert_eq!(status(&read_rest(first).await), 200);
    assert_eq!(gateway.record().await.backend_wait(), None);
    fake.set_healthy(true);
    fake.until_received(2).await;
    fake.go();
    assert_eq!(status(&read_rest(waits).await), 200);
    assert!(gateway.record().await.backend_wait().is_some());
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn a_waiting_stream_gets_comments_and_its_response() {
    let fake = ScriptedBackend::answering(stream_of(&[ROLE, WORD, FINISH, "[DONE]"])).await;
    fake.set_healthy(false);
    let keep_alive = Some(Duration::from_millis(5));
    let rules = StreamRules {
        keep_alive,
        ..StreamRules::default()
    };
    let observation = ObservationSettings {
        streams: rules,
        ..ObservationSettings::default()
    };
    let setup = Setup {
        observation,
        ..long_wait(SHORT_SCRAPE_INTERVAL)
    };
    let gateway = start_with(&[fake.addr], setup).await;
    let mut client = gateway.begin(CHAT, ASK_STREAM).await;
    read_until(&mut client, "\n: ").await;
    assert_eq!(fake.seen().len(), 0, "no backend has the request yet");
    fake.set_healthy(true);
    read_until(&mut client, "data: [DONE]").await;
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
}

#[tokio::test]
async fn a_request_waits_for_its_restarting_backend() {
    let fake = up().await;
    let mut backend = CrashableBackend::in_front_of(fake.addr);
    let gateway = unscraped(&[backend.addr]).await;
    backend.crash().await;
    let client = send(&gateway, "waits", "").await;
    until_waiting(&gateway, 1).await;
    backend.restart();
    // The health check after the failed attempt may have begun before the restart, so it can mark the backend
    // as down even after this line.
    wait_until!({
        gateway.pool.backends()[0].mark_up();
        fake.seen().len() == 1
    });
    assert_eq!(status(&read_rest(client).await), 200);
    let record = gateway.record().await;
    let failures: Vec<_> = record
        .attempts
        .iter()
        .map(|attempt| attempt.failure)
        .collect();
    assert_eq!(failures, [Some("connect_error"), None]);
    assert!(record.backend_wait().is_some());
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn an_abort_before_output_is_sent_again() {
    let fake = ScriptedBackend::start(|seen| match seen.number {
        0 => vec![Step::Send(stream_of(&[
            ROLE,
            &FINISH.replace("stop", "abort"),
            "[DONE]",
        ]))],
        _ => vec![Step::Send(stream_of(&[ROLE, WORD, FINISH, "[DONE]"]))],
    })
    .await;
    let gateway = unscraped(&[fake.addr]).await;
    let served = gateway.post(CHAT, ASK_STREAM).await;
    assert_eq!(status(&served), 200);
    let record = gateway.record().await;
    assert_eq!((record.attempts.len(), record.outcome), (2, Outcome::Ok));
}

#[tokio::test]
async fn a_possible_crash_request_does_not_wait() {
    let dead = json(
        "500 Internal Server Error",
        r#"{"error":{"message":"EngineDeadError"}}"#,
    );
    for response in [Vec::new(), dead] {
        let crashing = ScriptedBackend::following([Step::Send(response), Step::Close]).await;
        // The other backend refuses connections. The gateway tries it before the crash, after it, or before
        // and after it.
        for order in 0..3 {
            let gone = up().await;
            let all = [gone.addr, crashing.addr, gone.addr];
            let gateway = unscraped(&all[[0..2, 1..3, 1..2][order].clone()]).await;
            drop(gone);
            let answer = gateway.post(CHAT, ASK).await;
            assert!(status(&answer) >= 500, "{order}");
            assert_eq!(crashing.take_received().len(), 1, "{order}");
            assert_eq!(gateway.record().await.backend_wait(), None, "{order}");
        }
    }
}

/// Returns a request whose prompt has this number of bytes.
fn chat(prompt_bytes: usize) -> String {
    let message = serde_json::json!({ "role": "user", "content": "a".repeat(prompt_bytes) });
    serde_json::json!({ "model": "tiny", "max_tokens": 8, "messages": [message] }).to_string()
}

/// Starts a backend whose context has this number of tokens. It refuses prompts with more bytes than that.
async fn with_context(tokens: u32) -> ScriptedBackend {
    let fake = ScriptedBackend::start(move |seen| {
        let text = r#"{"error":{"message":"The maximum context length is exceeded."}}"#;
        let is_too_long = seen.body.len() > tokens as usize + 200;
        let answer = if is_too_long {
            ("400 Bad Request", text)
        } else {
            ("200 OK", "{}")
        };
        vec![Step::Send(json(answer.0, answer.1))]
    })
    .await;
    fake.set_context("tiny", tokens);
    fake
}

/// Starts a gateway with two backends that list their models. Their context lengths are 2,048 and 16,384 tokens.
async fn uneven() -> ([ScriptedBackend; 2], Running) {
    let fakes = [with_context(2_048).await, with_context(16_384).await];
    let addrs = fakes.each_ref().map(|fake| fake.addr);
    let gateway = start_with(&addrs, long_wait(SHORT_SCRAPE_INTERVAL)).await;
    let backends = gateway.pool.backends();
    wait_until!(
        backends
            .iter()
            .all(|backend| backend.health.state().models.is_some())
    );
    (fakes, gateway)
}

/// The shorter backend is sure to refuse the first prompt, so it is not asked. It may have room for the
/// second prompt, so it is asked.
#[tokio::test]
async fn only_requests_of_unavailable_backends_wait() {
    for (prompt_bytes, refusals) in [(16_450, 0), (12_000, 1)] {
        for is_drained in [true, false] {
            let ([short, long], gateway) = uneven().await;
            let name = long.addr.to_string();
            if is_drained {
                let drain = Drain::begin(DrainInitiator::Configuration, None, None);
                gateway.pool.drain(&name, drain).unwrap();
            } else {
                long.set_healthy(false);
                wait_until!(gateway.pool.backends()[1].health.state().health == Health::Down);
            }
            let client = gateway.begin(CHAT, &chat(prompt_bytes)).await;
            until_waiting(&gateway, 1).await;
            assert_eq!(short.seen().len(), refusals);
            assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
            let record = gateway.record().await;
            assert_eq!(
                record.gateway_queue_wait(),
                None,
                "it does not wait behind the long one"
            );
            let too_long = gateway.post(CHAT, &chat(500_000)).await;
            assert_eq!(status(&too_long), 400, "no backend will ever serve it");
            gateway.record().await;
            if is_drained {
                gateway
                    .pool
                    .undrain(&name, DrainInitiator::Configuration)
                    .unwrap();
            } else {
                long.set_healthy(true);
            }
            assert_eq!(status(&read_rest(client).await), 200);
            assert!(gateway.record().await.backend_wait().is_some());
            assert_eq!(long.seen().len(), 1);
            assert_no_state_left(&gateway).await;
        }
    }
}

/// A backend that is known to be down gets no attempt. A backend that ended without notice gets one attempt,
/// which fails.
#[tokio::test]
async fn unreached_requests_wait_and_are_finally_refused() {
    let wait = Duration::from_millis(40);
    for (fake, attempts) in [(down().await, 0), (up().await, 1)] {
        let gateway = one_at_each(&[&fake], waiting_for(wait), NO_SECOND_SCRAPE).await;
        drop(fake);
        let refused = read_rest(send(&gateway, "late", "").await).await;
        assert_eq!(status(&refused), 503);
        assert_eq!(
            header(&refused, "x-gateway-error").as_deref(),
            Some("no_backend")
        );
        let record = gateway.record().await;
        assert_eq!(
            (record.refusal, record.attempts.len()),
            (Some("no_backend"), attempts)
        );
        assert!(record.backend_wait().unwrap() >= wait);
        assert!(
            record.overhead().is_none(),
            "the wait is not the gateway's own time"
        );
        assert_no_state_left(&gateway).await;
    }
}

#[tokio::test]
async fn other_models_overtake_waiting_requests() {
    let (missing, other) = (up().await, up().await);
    missing.set_models(&["missing"]);
    let gateway = start_with(
        &[missing.addr, other.addr],
        long_wait(SHORT_SCRAPE_INTERVAL),
    )
    .await;
    wait_until!(gateway.pool.routes().models().len() == 2);
    missing.set_healthy(false);
    wait_until!(gateway.pool.backends()[0].health.state().health == Health::Down);
    let client = gateway
        .begin(CHAT, r#"{"model":"missing","messages":[]}"#)
        .await;
    until_waiting(&gateway, 1).await;
    let served = gateway.post(CHAT, ASK).await;
    assert_eq!(status(&served), 200);
    assert_eq!(gateway.record().await.gateway_queue_wait(), None);
    drop(client);
    assert_eq!(gateway.record().await.outcome, Outcome::Cancelled);
    assert_no_state_left(&gateway).await;
}

#[tokio::test]
async fn a_stream_that_would_be_late_is_refused() {
    let fake = held().await;
    let mut admission = admission_settings(&AdmissionConfig {
        max_in_flight: Some(1),
        ..waiting_for(LONG_WAIT)
    });
    let objective =
        serde_json::json!({ "name": "fast", "tier": "gold", "objective": "ttft < 40ms for 99 %" });
    admission.objectives = vec![serde_json::from_value::<Objective>(objective).unwrap()];
    let tiers = tiers(&["gold"]);
    let scrape_interval = NO_SECOND_SCRAPE;
    let setup = Setup {
        admission: Some(admission),
        tiers,
        scrape_interval,
        ..Setup::default()
    };
    let gateway = start_with(&[fake.addr], setup).await;
    let first = send(&gateway, "first", "").await;
    fake.until_received(1).await;
    let whole = send(&gateway, "whole", "x-tier: gold\r\n").await;
    until_waiting(&gateway, 1).await;
    let ask = with_lines(&post(CHAT, ASK_STREAM), "x-tier: gold");
    assert_shed(&gateway.raw(&ask).await, "late");
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.refusal),
        (Outcome::Rejected, Some("late"))
    );
    serve_all(&fake, &gateway, vec![first, whole]).await;
    assert_no_state_left(&gateway).await;
}

//! A request that a backend may have executed is never retried silently. If the backend closes a pooled
//! connection, the gateway counts that as a failure, unless the close and the request may have crossed on the
//! connection.

use crate::support::scripted_backend::{ScriptedBackend, Seen, Step, json};
use crate::support::test_gateway::{
    ASK, CHAT, Running, Setup, advance_time, start, start_before, status, with_paused_time,
};
use std::time::Duration;
use tokenweir_gateway::proxy::retry;
use tokenweir_request::record::{FailoverDenialReason, Outcome};

const STORE: &str = r#"{"model":"tiny","store":true,"messages":[]}"#;
const POISON: &str = r#"{"model":"tiny","messages":["poison"]}"#;
/// A request and a close can cross on a connection only within a shorter time than this.
const AFTER_CROSSING: Duration = Duration::from_millis(20);

fn has_body(seen: &Seen, body: &str) -> bool {
    seen.body == body.as_bytes()
}

/// Starts a backend that follows `steps` for a request whose body is `fatal`, and answers every other
/// request.
async fn closing_on(fatal: &'static str, steps: fn() -> Vec<Step>) -> ScriptedBackend {
    let answer = json("200 OK", r#"{"object":"chat.completion","choices":["a"]}"#);
    ScriptedBackend::start(move |seen| {
        if has_body(seen, fatal) {
            steps()
        } else {
            vec![Step::Send(answer.clone())]
        }
    })
    .await
}

/// Starts a gateway that already has a pooled connection to each of the backends.
async fn gateway_with_pooled_connections(fakes: &[ScriptedBackend]) -> Running {
    let gateway = start_before(fakes, Setup::default()).await;
    while fakes.iter().any(|fake| fake.connections() == 0) {
        assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
        gateway.record().await;
    }
    gateway
}

/// Returns how often each backend has received the request with this body.
fn request_counts(fakes: &[ScriptedBackend], body: &str) -> Vec<usize> {
    fakes
        .iter()
        .map(|fake| {
            fake.seen()
                .iter()
                .filter(|seen| has_body(seen, body))
                .count()
        })
        .collect()
}

/// Sends a request. Its backends read the request and then close the connection so late that the close cannot
/// have crossed the request. Returns the response.
async fn closed_later(gateway: &Running, fakes: &[ScriptedBackend], ask: &'static str) -> Vec<u8> {
    let asking = gateway.post(CHAT, ask);
    tokio::pin!(asking);
    let mut closed = vec![0; fakes.len()];
    loop {
        for (closed, (fake, times)) in closed
            .iter_mut()
            .zip(fakes.iter().zip(request_counts(fakes, ask)))
        {
            while *closed < times {
                advance_time(AFTER_CROSSING).await;
                fake.go();
                *closed += 1;
            }
        }
        tokio::select! {
            biased;
            answer = &mut asking => return answer,
            () = tokio::task::yield_now() => {}
        }
    }
}

/// Returns the steps of a backend that closes the connection. If `is_late` is true, it does so when the test
/// releases it, else at once.
fn closing(is_late: bool) -> fn() -> Vec<Step> {
    if is_late {
        || vec![Step::Wait, Step::Close]
    } else {
        || vec![Step::Close]
    }
}

/// Sends a request whose backends close the connection, late or at once. Returns the response.
async fn closed(
    gateway: &Running,
    fakes: &[ScriptedBackend],
    ask: &'static str,
    is_late: bool,
) -> Vec<u8> {
    if is_late {
        closed_later(gateway, fakes, ask).await
    } else {
        with_paused_time(gateway.post(CHAT, ask)).await
    }
}

#[tokio::test]
async fn side_effects_are_sent_once() {
    for is_late in [false, true] {
        let close = closing(is_late);
        let fakes = [
            closing_on(STORE, close).await,
            closing_on(STORE, close).await,
        ];
        let gateway = gateway_with_pooled_connections(&fakes).await;
        let answer = closed(&gateway, &fakes, STORE, is_late).await;
        assert_eq!(status(&answer), 502);
        assert_eq!(request_counts(&fakes, STORE).iter().sum::<usize>(), 1);
        let record = gateway.record().await;
        assert_eq!(
            (record.outcome, record.attempts.len()),
            (Outcome::UpstreamError, 1)
        );
        assert_eq!(record.not_retried, Some(FailoverDenialReason::SideEffects));
    }
}

#[tokio::test]
async fn two_closes_prevent_a_third_attempt() {
    for is_late in [false, true] {
        let mut fakes = Vec::new();
        for _ in 0..5 {
            fakes.push(closing_on(POISON, closing(is_late)).await);
        }
        let gateway = gateway_with_pooled_connections(&fakes).await;
        let answer = closed(&gateway, &fakes, POISON, is_late).await;
        assert_eq!(status(&answer), 502);
        let closed_connections = request_counts(&fakes, POISON)
            .into_iter()
            .filter(|times| *times > 0)
            .count();
        assert_eq!(
            closed_connections, 2,
            "after the second close, the request is suspect"
        );
        assert_eq!(
            gateway.record().await.not_retried,
            Some(FailoverDenialReason::PoisonRequest)
        );
    }
}

#[tokio::test]
async fn closes_count_in_the_circuit_breaker() {
    let fake = closing_on(POISON, || vec![Step::Wait, Step::Close]).await;
    let gateway = gateway_with_pooled_connections(std::slice::from_ref(&fake)).await;
    for _ in 0..5 {
        // This request leaves a pooled connection that has carried a response. The request after it uses that
        // connection.
        assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
        gateway.record().await;
        let before = request_counts(std::slice::from_ref(&fake), POISON);
        let (answer, ()) = tokio::join!(gateway.post(CHAT, POISON), async {
            wait_until!(request_counts(std::slice::from_ref(&fake), POISON) != before);
            advance_time(AFTER_CROSSING).await;
            fake.go();
            fake.go();
        });
        assert_eq!(status(&answer), 502);
        let record = gateway.record().await;
        let failures: Vec<_> = record
            .attempts
            .iter()
            .map(|attempt| attempt.failure)
            .collect();
        assert_eq!(failures, [Some("stale"), Some("connection_reset")]);
    }
    assert_eq!(
        fake.seen()
            .iter()
            .filter(|seen| has_body(seen, POISON))
            .count(),
        10
    );
}

#[tokio::test]
async fn common_refusals_use_a_bounded_budget() {
    let missing = || json("404 Not Found", r#"{"detail":"Not Found"}"#);
    let fakes = [
        ScriptedBackend::answering(missing()).await,
        ScriptedBackend::answering(missing()).await,
    ];
    let retry = retry::RetrySettings {
        budget_ratio: 0.0,
        min_retries_per_second: 1,
        ..retry::RetrySettings::default()
    };
    let gateway = start_before(
        &fakes,
        Setup {
            retry,
            ..Setup::default()
        },
    )
    .await;
    for _ in 0..20 {
        let answer = gateway
            .post("/v1/embeddings", r#"{"model":"tiny","input":"x"}"#)
            .await;
        assert_eq!(status(&answer), 404);
        assert_eq!(gateway.record().await.not_retried, None);
    }
    let sent = fakes.iter().map(|fake| fake.seen().len()).sum::<usize>();
    // Retries for a single client may use half of the retry budget of ten seconds.
    assert!((21..=25).contains(&sent), "{sent}");
}

#[tokio::test]
async fn without_output_a_lost_backend_fails_over() {
    let answer = json("200 OK", r#"{"object":"chat.completion","choices":["a"]}"#);
    let frozen = ScriptedBackend::start(|_| vec![Step::AwaitClose]).await;
    let other = ScriptedBackend::answering(answer).await;
    other.set_healthy(false);
    let gateway = start(&[frozen.addr, other.addr]).await;
    let asking = gateway.post(CHAT, ASK);
    let falling = async {
        frozen.until_received(1).await;
        frozen.set_healthy(false);
        let pool = gateway.pool.backends();
        pool[0].health.wait_declared_down().await;
        assert_eq!(
            frozen.seen().len(),
            1,
            "without another backend, the request stays"
        );
        other.set_healthy(true);
        frozen.closed().await;
    };
    let (answer, ()) = tokio::join!(asking, falling);
    assert_eq!(status(&answer), 200);
    let record = gateway.record().await;
    let failures: Vec<_> = record
        .attempts
        .iter()
        .map(|attempt| attempt.failure)
        .collect();
    assert_eq!(failures, [Some("backend_down"), None]);
    assert_eq!(record.outcome, Outcome::Ok);
}

#[tokio::test]
async fn side_effects_stay_at_a_lost_backend() {
    let answer = json("200 OK", r#"{"object":"chat.completion","choices":["a"]}"#);
    let slow = ScriptedBackend::start(move |_| vec![Step::Wait, Step::Send(answer.clone())]).await;
    let other = ScriptedBackend::answering(json("200 OK", r#"{"a":1}"#)).await;
    other.set_healthy(false);
    let gateway = start(&[slow.addr, other.addr]).await;
    let (answer, ()) = tokio::join!(gateway.post(CHAT, STORE), async {
        slow.until_received(1).await;
        slow.set_healthy(false);
        other.set_healthy(true);
        gateway.pool.backends()[0].health.wait_declared_down().await;
        slow.go();
    });
    assert_eq!(status(&answer), 200);
    assert_eq!((slow.seen().len(), other.seen().len()), (1, 0));
}

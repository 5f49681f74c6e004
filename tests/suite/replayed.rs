//! A request that a backend may have executed is never sent again in silence. A close of a pooled
//! connection counts as a failure unless the close crossed the request on the wire.

use crate::support::fake::{Fake, Seen, Step, json};
use crate::support::gateway::{
    Running, Setup, at_one_moment, pass_time, start, start_with, status,
};
use std::time::Duration;
use tokenweir::proxy::retry;
use tokenweir_core::record::{NotRetried, Outcome};

const CHAT: &str = "/v1/chat/completions";
const ASK: &str = r#"{"model":"tiny","messages":[]}"#;
const STORE: &str = r#"{"model":"tiny","store":true,"messages":[]}"#;
const POISON: &str = r#"{"model":"tiny","messages":["poison"]}"#;
/// Longer than a close may take that crosses a request.
const LATER: Duration = Duration::from_millis(20);

fn is(seen: &Seen, ask: &str) -> bool {
    seen.body == ask.as_bytes()
}

/// A backend that answers every request except `fatal`, which it reads and then follows `steps`.
async fn dying_of(fatal: &'static str, steps: fn() -> Vec<Step>) -> Fake {
    let answer = json("200 OK", r#"{"object":"chat.completion"}"#);
    Fake::start(
        move |seen| {
            if is(seen, fatal) { steps() } else { vec![Step::Send(answer.clone())] }
        },
    )
    .await
}

/// A gateway with a pooled connection to each of the backends.
async fn warm(fakes: &[Fake]) -> Running {
    let gateway = start(&fakes.iter().map(|fake| fake.addr).collect::<Vec<_>>()).await;
    while fakes.iter().any(|fake| fake.connections() == 0) {
        assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
        gateway.record().await;
    }
    gateway
}

/// How often each backend was sent this request.
fn times(fakes: &[Fake], ask: &str) -> Vec<usize> {
    fakes.iter().map(|fake| fake.seen().iter().filter(|seen| is(seen, ask)).count()).collect()
}

/// The answer to a request that its backends read and then close their connections on, too late for
/// the close to have crossed the request.
async fn closed_later(gateway: &Running, fakes: &[Fake], ask: &'static str) -> Vec<u8> {
    let asking = gateway.post(CHAT, ask);
    tokio::pin!(asking);
    let mut closed = vec![0; fakes.len()];
    loop {
        for (closed, (fake, times)) in closed.iter_mut().zip(fakes.iter().zip(times(fakes, ask))) {
            while *closed < times {
                pass_time(LATER).await;
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

/// Steps that close the connection at once, or when the test says so.
fn closing(is_late: bool) -> fn() -> Vec<Step> {
    if is_late { || vec![Step::Wait, Step::Close] } else { || vec![Step::Close] }
}

/// The answer to a request that its backends close their connections on.
async fn closed(gateway: &Running, fakes: &[Fake], ask: &'static str, is_late: bool) -> Vec<u8> {
    if is_late {
        closed_later(gateway, fakes, ask).await
    } else {
        at_one_moment(gateway.post(CHAT, ask)).await
    }
}

#[tokio::test]
async fn a_request_with_effects_that_was_written_is_sent_once_however_its_connection_closes() {
    for is_late in [false, true] {
        let close = closing(is_late);
        let fakes = [dying_of(STORE, close).await, dying_of(STORE, close).await];
        let gateway = warm(&fakes).await;
        let answer = closed(&gateway, &fakes, STORE, is_late).await;
        assert_eq!(status(&answer), 502);
        assert_eq!(times(&fakes, STORE).iter().sum::<usize>(), 1);
        let record = gateway.record().await;
        assert_eq!((record.outcome, record.attempts.len()), (Outcome::UpstreamError, 1));
        assert_eq!(record.not_retried, Some(NotRetried::Effects));
    }
}

#[tokio::test]
async fn a_request_that_pooled_connections_die_of_goes_to_no_third_backend() {
    for is_late in [false, true] {
        let mut fakes = Vec::new();
        for _ in 0..5 {
            fakes.push(dying_of(POISON, closing(is_late)).await);
        }
        let gateway = warm(&fakes).await;
        let answer = closed(&gateway, &fakes, POISON, is_late).await;
        assert_eq!(status(&answer), 502);
        let died = times(&fakes, POISON).into_iter().filter(|times| *times > 0).count();
        assert_eq!(died, 2, "the second death makes the request suspicious");
        assert_eq!(gateway.record().await.not_retried, Some(NotRetried::Poison));
    }
}

#[tokio::test]
async fn a_late_close_of_a_pooled_connection_counts_for_attempts_budget_and_breaker() {
    let fake = dying_of(POISON, || vec![Step::Wait, Step::Close]).await;
    let gateway = warm(std::slice::from_ref(&fake)).await;
    for _ in 0..5 {
        // Each request travels on a connection that has carried an answer before.
        assert_eq!(status(&gateway.post(CHAT, ASK).await), 200);
        gateway.record().await;
        let before = times(std::slice::from_ref(&fake), POISON);
        let (answer, ()) = tokio::join!(gateway.post(CHAT, POISON), async {
            while times(std::slice::from_ref(&fake), POISON) == before {
                tokio::task::yield_now().await;
            }
            pass_time(LATER).await;
            fake.go();
        });
        assert_eq!(status(&answer), 502);
        let record = gateway.record().await;
        assert_eq!(record.attempts.len(), 1);
        assert_eq!(record.attempts[0].failure, Some("connection_reset"));
    }
    assert_eq!(fake.seen().iter().filter(|seen| is(seen, POISON)).count(), 5);
}

#[tokio::test]
async fn a_client_whose_requests_are_not_found_anywhere_spends_nothing_of_the_retry_budget() {
    let missing = || json("404 Not Found", r#"{"detail":"Not Found"}"#);
    let fakes = [Fake::answering(missing()).await, Fake::answering(missing()).await];
    let addresses = fakes.each_ref().map(|fake| fake.addr);
    let retry = retry::Settings { budget: 0.0, budget_floor: 1, ..retry::Settings::default() };
    let gateway = start_with(&addresses, Setup { retry, ..Setup::default() }).await;
    for _ in 0..20 {
        let answer = gateway.post("/v1/embeddings", r#"{"model":"tiny","input":"x"}"#).await;
        assert_eq!(status(&answer), 404);
        let record = gateway.record().await;
        assert_eq!((record.attempts.len(), record.not_retried), (1, None));
    }
    assert_eq!(fakes.iter().map(|fake| fake.seen().len()).sum::<usize>(), 20);
}

#[tokio::test]
async fn a_request_without_output_leaves_a_backend_that_is_declared_down_if_another_can_take_it() {
    let answer = json("200 OK", r#"{"object":"chat.completion"}"#);
    let frozen = Fake::start(|_| vec![Step::AwaitClose]).await;
    let other = Fake::answering(answer).await;
    other.set_healthy(false);
    let setup = Setup { look_every: Duration::from_millis(20), ..Setup::default() };
    let gateway = start_with(&[frozen.addr, other.addr], setup).await;
    let asking = gateway.post(CHAT, ASK);
    let falling = async {
        while frozen.seen().is_empty() {
            tokio::task::yield_now().await;
        }
        frozen.set_healthy(false);
        let pool = gateway.pool.backends();
        pool[0].declared_down().await;
        assert_eq!(frozen.seen().len(), 1, "there is no other backend: the request stays");
        other.set_healthy(true);
        frozen.closed().await;
    };
    let (answer, ()) = tokio::join!(asking, falling);
    assert_eq!(status(&answer), 200);
    let record = gateway.record().await;
    let failures: Vec<_> = record.attempts.iter().map(|attempt| attempt.failure).collect();
    assert_eq!(failures, [Some("backend_down"), None]);
    assert_eq!(record.outcome, Outcome::Ok);
}

#[tokio::test]
async fn a_request_with_effects_stays_at_a_backend_that_is_declared_down() {
    let answer = json("200 OK", r#"{"object":"chat.completion"}"#);
    let slow = Fake::start(move |_| vec![Step::Wait, Step::Send(answer.clone())]).await;
    let other = Fake::answering(json("200 OK", "{}")).await;
    other.set_healthy(false);
    let setup = Setup { look_every: Duration::from_millis(20), ..Setup::default() };
    let gateway = start_with(&[slow.addr, other.addr], setup).await;
    let (answer, ()) = tokio::join!(gateway.post(CHAT, STORE), async {
        while slow.seen().is_empty() {
            tokio::task::yield_now().await;
        }
        slow.set_healthy(false);
        other.set_healthy(true);
        gateway.pool.backends()[0].declared_down().await;
        slow.go();
    });
    assert_eq!(status(&answer), 200);
    assert_eq!((slow.seen().len(), other.seen().len()), (1, 0));
}

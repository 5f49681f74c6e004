//! Engines that accept requests but generate no output, although their `/health` and `/metrics` respond.

use crate::support::scripted_backend::{ScriptedBackend, Step, WHOLE_STREAM, stream_of};
use crate::support::test_gateway::{ASK_STREAM, CHAT, Running, gateway_scripted, read_rest, start};
use tokenweir_protocol::clock;
use tokenweir_request::record::Outcome;
use tokenweir_routing::PromptFingerprint;
use tokio::net::TcpStream;

/// Sends requests until one reaches the backend `stuck`, which never answers. Returns the client connection
/// of that request.
async fn hang(gateway: &Running, stuck: &ScriptedBackend) -> TcpStream {
    loop {
        let client = gateway.begin(CHAT, ASK_STREAM).await;
        let is_answered = tokio::select! {
            record = gateway.record() => record.outcome == Outcome::Ok,
            () = stuck.until_received(1) => false,
        };
        if !is_answered {
            return client;
        }
    }
}

/// Returns the number of seconds by which the output of this backend is overdue according to its load
/// estimate.
fn overdue(gateway: &Running, backend: &str) -> f64 {
    let backends = gateway.pool.backends();
    let backend = backends
        .iter()
        .find(|known| known.identity.id.as_str() == backend)
        .unwrap();
    backend
        .load
        .estimator
        .candidate(&PromptFingerprint::default(), clock::now())
        .overdue
}

#[tokio::test]
async fn overdue_output_stops_further_requests() {
    let stuck =
        ScriptedBackend::following([Step::Wait, Step::Send(stream_of(&WHOLE_STREAM))]).await;
    let well = ScriptedBackend::answering(stream_of(&WHOLE_STREAM)).await;
    let gateway = start(&[stuck.addr, well.addr]).await;
    let client = hang(&gateway, &stuck).await;
    let name = stuck.addr.to_string();
    wait_until!(overdue(&gateway, &name) > 2.0);
    for _ in 0..20 {
        gateway.post(CHAT, ASK_STREAM).await;
        let record = gateway.record().await;
        assert_eq!(record.backend().unwrap().as_str(), well.addr.to_string());
    }
    assert_eq!(stuck.seen().len(), 1, "only the request that hangs");
    stuck.go();
    read_rest(client).await;
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
    assert!(
        overdue(&gateway, &name) <= 0.0,
        "the request makes progress"
    );
}

#[tokio::test]
async fn the_record_shows_that_nobody_else_waited() {
    let (stuck, gateway) = gateway_scripted(|_| vec![Step::AwaitClose]).await;
    let client = hang(&gateway, &stuck).await;
    drop(client);
    let record = gateway.record().await;
    assert_eq!(
        (record.outcome, record.phase()),
        (Outcome::Cancelled, "headers")
    );
    assert_eq!(
        record.condition.waiting,
        Some(0),
        "the condition is read when the request ends"
    );
}

//! Engines that take requests and give no output, although `/health` and `/metrics` are answered.

use crate::support::fake::{FINISH, Fake, ROLE, Step, USAGE, WORD, stream_of};
use crate::support::gateway::{Running, post, start};
use tokenweir_core::clock;
use tokenweir_core::record::Outcome;
use tokenweir_core::routing::Prompt;
use tokio::io::AsyncReadExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
const ASK: &str = r#"{"model":"tiny","stream":true,"messages":[]}"#;

fn answer() -> Vec<u8> {
    stream_of(&[ROLE, WORD, FINISH, USAGE, "[DONE]"])
}

/// Sends requests, one after the other, until one hangs at this backend.
async fn hang(gateway: &Running, frozen: &Fake) -> TcpStream {
    loop {
        let mut client = gateway.connect().await;
        client.write_all(post(CHAT, ASK).as_bytes()).await.unwrap();
        let is_answered = tokio::select! {
            record = gateway.record() => record.outcome == Outcome::Ok,
            () = async { while frozen.seen().is_empty() { tokio::task::yield_now().await } } => false,
        };
        if !is_answered {
            return client;
        }
    }
}

/// For how many seconds a backend is overdue.
fn overdue(gateway: &Running, backend: &str) -> f64 {
    let backends = gateway.pool.backends();
    let backend = backends.iter().find(|known| known.id.as_str() == backend).unwrap();
    backend.ledger.candidate(&Prompt::default(), clock::now()).overdue
}

#[tokio::test]
async fn a_frozen_backend_gets_no_more_requests_once_one_is_overdue() {
    let frozen = Fake::start(|_| vec![Step::Wait, Step::Send(answer())]).await;
    let well = Fake::start(|_| vec![Step::Send(answer())]).await;
    let gateway = start(&[frozen.addr, well.addr]).await;
    let mut client = hang(&gateway, &frozen).await;
    let name = frozen.addr.to_string();
    while overdue(&gateway, &name) <= 0.0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..20 {
        gateway.post(CHAT, ASK).await;
        let record = gateway.record().await;
        assert_eq!(record.backend().unwrap().as_str(), well.addr.to_string());
    }
    assert_eq!(frozen.seen().len(), 1, "the one that hangs");
    let page = gateway.admin("/explain").await;
    assert!(page.contains(r#""reason":"avoids_overdue""#), "{page}");
    frozen.go();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert_eq!(gateway.record().await.outcome, Outcome::Ok);
    assert!(overdue(&gateway, &name) <= 0.0, "it goes on");
}

#[tokio::test]
async fn a_request_that_a_frozen_backend_never_answers_is_not_blamed_on_its_prompt() {
    let frozen = Fake::start(|_| vec![Step::AwaitClose]).await;
    let gateway = start(&[frozen.addr]).await;
    let client = hang(&gateway, &frozen).await;
    drop(client);
    let record = gateway.record().await;
    assert_eq!((record.outcome, record.phase()), (Outcome::Cancelled, "headers"));
    assert_eq!(record.condition.waiting, Some(0), "the backend is asked when the request ends");
}

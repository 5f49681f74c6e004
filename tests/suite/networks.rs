//! Host names whose address changes under load, and gateways that are backends of other gateways.

use crate::support::scripted_backend::{self, ScriptedBackend, Step};
use crate::support::tcp_server::TcpServer;
use crate::support::test_gateway::{
    CHAT, Running, Setup, WHOLE, body_json, post, start, start_with, status, with_lines,
};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_engine::address::MetricsUrl;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const AGE: Duration = Duration::from_millis(300);

fn chat(number: usize) -> String {
    let content = format!("request {number}");
    json!({ "model": "tiny", "messages": [{ "role": "user", "content": content }] }).to_string()
}

/// Starts a proxy that stands for a host name whose address changes. It connects each new connection to the
/// current address in `target`. Open connections keep their target.
async fn name_of(target: Arc<Mutex<SocketAddr>>) -> TcpServer {
    TcpServer::start(move |mut client| {
        let target = *target.lock().unwrap();
        async move {
            let mut backend = TcpStream::connect(target).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut backend).await;
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_changed_address_is_followed() {
    let answer = || ScriptedBackend::answering(scripted_backend::json("200 OK", WHOLE));
    let (blue, green) = (answer().await, answer().await);
    let target = Arc::new(Mutex::new(blue.addr));
    let name = name_of(target.clone()).await;
    let setup = Setup {
        connection_age: Some(AGE),
        ..Setup::default()
    };
    let gateway = Arc::new(start_with(&[name.addr], setup).await);
    let (is_over, sent) = (
        Arc::new(AtomicBool::new(false)),
        Arc::<Mutex<Vec<_>>>::default(),
    );
    let mut clients = JoinSet::new();
    for client in 0..4 {
        let (gateway, is_over, sent) = (gateway.clone(), is_over.clone(), sent.clone());
        clients.spawn(async move {
            for number in (client..).step_by(4) {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                sent.lock().unwrap().push((Instant::now(), number));
                assert_eq!(status(&gateway.post(CHAT, &chat(number)).await), 200);
            }
        });
    }
    blue.until_received(40).await;
    *target.lock().unwrap() = green.addr;
    let moved_at = Instant::now();
    let is_followed = |at: &Instant| *at > moved_at + AGE;
    wait_until!(
        sent.lock()
            .unwrap()
            .iter()
            .filter(|(at, _)| is_followed(at))
            .count()
            > 40
    );
    is_over.store(true, Ordering::SeqCst);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let at_blue: Vec<String> = blue
        .seen()
        .iter()
        .map(|seen| String::from_utf8_lossy(&seen.body).into_owned())
        .collect();
    for (at, number) in sent
        .lock()
        .unwrap()
        .iter()
        .filter(|(at, _)| is_followed(at))
    {
        let request = format!("\"request {number}\"");
        let age = at.duration_since(moved_at);
        assert!(
            !at_blue.iter().any(|body| body.contains(&request)),
            "{age:?} after the move"
        );
    }
    assert!(green.seen().len() > 40);
}

#[tokio::test]
async fn a_gateway_reads_another_gateways_load() {
    let engine = ScriptedBackend::answering(scripted_backend::json("200 OK", WHOLE)).await;
    let inner = start(&[engine.addr]).await;
    let metrics_url = MetricsUrl::parse(&format!("http://{}/metrics", inner.admin)).ok();
    let outer = start_with(
        &[inner.addr],
        Setup {
            metrics_url,
            ..Setup::default()
        },
    )
    .await;
    assert_eq!(status(&outer.post(CHAT, &chat(0)).await), 200);
    let shown = outer.document("/status").await["backends"][0].clone();
    assert_eq!(shown["scrape_error"], Value::Null, "{shown}");
    assert_eq!(
        (&shown["dialect"], &shown["running"]),
        (&json!("tokenweir"), &json!(1.0))
    );
    assert_eq!(shown["kv_usage"], 0.25);
    let head = engine.seen()[0].head.clone();
    let via = head
        .lines()
        .find_map(|line| line.strip_prefix("via: "))
        .unwrap();
    let is_one = !via.contains(',');
    assert!(
        is_one,
        "the gateway before the gateway, and not the one before the engine: {via}"
    );
}

/// Starts a gateway and its backend. The backend identifies itself as another gateway, and answers with the
/// header `via` of the request.
async fn start_loop() -> (ScriptedBackend, Running) {
    let fake = ScriptedBackend::start(|seen| {
        let via = seen
            .head
            .lines()
            .find_map(|line| line.strip_prefix("via: "));
        let answer = json!({ "via": via }).to_string();
        vec![Step::Send(scripted_backend::json("200 OK", &answer))]
    })
    .await;
    let models = json!({
        "object": "list", "data": [{ "id": "tiny", "object": "model", "owned_by": "vllm" }],
        "model_states": { "tiny": "available" },
    });
    fake.set_page("/v1/models", "200 OK", &models.to_string());
    let gateway = start(&[fake.addr]).await;
    (fake, gateway)
}

#[tokio::test]
async fn a_loop_is_answered_with_508() {
    let (fake, gateway) = start_loop().await;
    let answer = gateway.post(CHAT, &chat(0)).await;
    let via = body_json(&answer)["via"]
        .as_str()
        .expect("a gateway is told the hops")
        .to_owned();
    let (_other_backend, other) = start_loop().await;
    let came_back = with_lines(&post(CHAT, &chat(1)), &format!("via: 1.1 proxy, {via}"));
    let looped = gateway.raw(&came_back).await;
    assert_eq!(status(&looped), 508, "{}", String::from_utf8_lossy(&looped));
    assert_eq!(
        fake.seen().len(),
        1,
        "a request that came back is not forwarded"
    );
    assert_eq!(
        status(&other.raw(&came_back).await),
        200,
        "another gateway forwards it"
    );
}

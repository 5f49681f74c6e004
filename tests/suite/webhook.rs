//! Webhooks. The gateway sends a message when a verdict begins and when it ends. It sends each message until
//! the webhook accepts it, then never again, and with the secrets of the configuration. A webhook that does
//! not respond delays no other one.

use crate::support::process::{GatewayProcess, folder};
use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, USAGE, WORD, stream_of};
use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokenweir_diagnose::{Diagnosis, Verdict};
use tokenweir_engine::address::BackendAddress;
use tokenweir_gateway::webhook::{
    BEGINS_AFTER, ENDS_AFTER, RetryTimes, WebhookEndpoint, WebhookNotifier, WebhookSettings,
};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// A request that the webhook received: its `Authorization` header, and its JSON message.
type Received = (Option<String>, Value);

/// A webhook that responds with `status`.
struct ScriptedWebhook {
    addr: SocketAddr,
    status: Arc<AtomicU16>,
    received: mpsc::UnboundedReceiver<Received>,
}

impl ScriptedWebhook {
    async fn start() -> Self {
        let (sender, received) = mpsc::unbounded_channel();
        let status = Arc::new(AtomicU16::new(200));
        let answered = status.clone();
        let accept = move |headers: HeaderMap, body: Bytes| async move {
            assert_eq!(headers["content-type"], "application/json");
            let token = headers.get("authorization").map(|it| it.to_str().unwrap().to_owned());
            let _ = sender.send((token, serde_json::from_slice(&body).unwrap()));
            StatusCode::from_u16(answered.load(Ordering::Relaxed)).unwrap()
        };
        let router = Router::new().route("/hook/secret", post(accept));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await });
        Self { addr, status, received }
    }

    async fn next(&mut self) -> Received {
        tokio::time::timeout(Duration::from_secs(20), self.received.recv()).await.unwrap().unwrap()
    }
}

fn notifier(addresses: &[SocketAddr], max_requests: u32) -> WebhookNotifier {
    let endpoint = |addr: &SocketAddr| WebhookEndpoint {
        address: BackendAddress::parse(&addr.to_string()).unwrap(),
        path: "/hook/secret".parse().unwrap(),
        authorization: None,
    };
    let notifier = WebhookNotifier::default();
    notifier.configure(WebhookSettings {
        endpoints: addresses.iter().map(endpoint).collect(),
        gateway: "gateway-0:9090".to_owned(),
        runbooks: "http://gateway:9090/runbooks".to_owned(),
        retries: RetryTimes { max_requests, first_pause: Duration::from_millis(1) },
    });
    notifier
}

/// Reports a verdict that begins at `start`, and reports it again after the time for which a verdict must
/// last before the gateway sends a message.
fn begin(notifier: &WebhookNotifier, start: Instant) {
    let verdict =
        Verdict { verdict: "kv_thrashing".into(), backend: "gpu-0".into(), ..Verdict::default() };
    let diagnosis = Diagnosis { verdicts: vec![verdict], ..Diagnosis::default() };
    for passed in [Duration::ZERO, BEGINS_AFTER] {
        notifier.update(&diagnosis, start + passed, SystemTime::now());
    }
}

#[tokio::test]
async fn begin_and_end_of_a_verdict_are_each_one_message() {
    let mut webhook = ScriptedWebhook::start().await;
    let (notifier, start) = (notifier(&[webhook.addr], 3), Instant::now());
    begin(&notifier, start);
    notifier.update(&Diagnosis::default(), start + BEGINS_AFTER + ENDS_AFTER, SystemTime::now());
    let (first, last) = (webhook.next().await.1, webhook.next().await.1);
    assert_eq!((&first["event"], &first["verdict"]), (&"begin".into(), &"kv_thrashing".into()));
    assert_eq!((&last["event"], &last["backend"]), (&"end".into(), &"gpu-0".into()));
    assert!(first["text"].as_str().unwrap().contains("kv_thrashing at gpu-0"), "{first}");
    wait_until!(notifier.status()[0].ok == 2);
    assert!(webhook.received.try_recv().is_err());
}

#[tokio::test]
async fn a_message_is_repeated_a_bounded_number_of_times_and_delays_no_other_webhook() {
    // This listener accepts connections, but never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut failing, mut healthy) =
        (ScriptedWebhook::start().await, ScriptedWebhook::start().await);
    failing.status.store(503, Ordering::Relaxed);
    let addresses = [silent.local_addr().unwrap(), failing.addr, healthy.addr];
    let (notifier, start) = (notifier(&addresses, 3), Instant::now());
    begin(&notifier, start);
    healthy.next().await;
    for _ in 0..3 {
        assert_eq!(failing.next().await.1["event"], "begin");
    }
    wait_until!(notifier.status()[1].failed == 1);
    let status = notifier.status();
    let error = status[1].error.as_deref();
    assert_eq!(error, Some("it responded with status 503 Service Unavailable"));
    assert_eq!((status[0].ok, status[1].ok, status[2].error.is_none()), (0, 0, true), "{status:?}");
    failing.status.store(200, Ordering::Relaxed);
    notifier.update(&Diagnosis::default(), start + BEGINS_AFTER + ENDS_AFTER, SystemTime::now());
    assert_eq!(failing.next().await.1["event"], "end", "the begin was dropped");
    wait_until!(notifier.status()[1].error.is_none());
}

#[tokio::test]
async fn the_program_posts_to_a_secret_url_with_a_token_and_shows_neither() {
    let backend =
        ScriptedBackend::answering(stream_of(&[ROLE, WORD, FINISH, USAGE, "[DONE]"])).await;
    let mut webhook = ScriptedWebhook::start().await;
    let file = folder("webhook").join("gateway.yaml");
    let write = |secrets: &str| {
        let text = format!(
            "listen: 127.0.0.1:0\nbackends: [{{ url: \"http://{}\" }}]\n\
             webhooks: [{{ {secrets} }}]\n",
            backend.addr
        );
        std::fs::write(&file, text).unwrap();
    };
    write("url: { env: HOOK }, token: { env: TOKEN }");
    let hook = format!("http://{}/hook/secret", webhook.addr);
    let gateway =
        GatewayProcess::start_with(&file, &[("HOOK", &hook), ("TOKEN", "abc"), ("WORD", "x")])
            .await;
    for page in ["/status", "/config"] {
        let shown = gateway.get(page).await;
        assert!(!shown.contains("hook/secret") && !shown.contains("abc"), "{page}: {shown}");
    }
    assert!(gateway.get("/status").await.contains(&format!("\"webhook\":\"{}\"", webhook.addr)));
    for (secrets, problem) in [
        ("url: { env: ABSENT }", "cannot read the URL of webhooks[0]"),
        ("url: { env: HOOK }, token: { env: ABSENT }", "cannot read the token of webhooks[0]"),
        ("url: { env: WORD }, token: { env: WORD }", "webhooks"),
    ] {
        write(secrets);
        let reloaded = gateway.reload().await;
        assert!(reloaded.contains(problem), "{reloaded}");
    }
    assert!(webhook.received.try_recv().is_err(), "no verdict holds");
}

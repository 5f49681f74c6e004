//! Webhooks: the gateway sends a message when a verdict of the diagnosis begins and when it ends. It repeats
//! each message until the webhook accepts it or the limit of attempts is reached. Each request uses the secrets
//! of the configuration. A webhook that does not respond delays no other one.

use crate::support::process::{GatewayProcess, folder};
use crate::support::scripted_backend::{
    ScriptedBackend, Seen, Step, WHOLE_STREAM, json, stream_of,
};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokenweir_diagnose::{Diagnosis, Verdict};
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::client::receiver::Receiver;
use tokenweir_option::DiagnosisHooks;
use tokenweir_webhooks::{BEGINS_AFTER, ENDS_AFTER, RetryTimes, WebhookNotifier, WebhookSettings};
use tokio::net::TcpListener;

/// A webhook server that accepts messages, or responds to them with status 503.
struct ScriptedWebhook {
    server: ScriptedBackend,
    is_failing: Arc<AtomicBool>,
    /// Number of messages that the test has taken.
    taken: usize,
}

impl ScriptedWebhook {
    async fn start() -> Self {
        let is_failing = Arc::<AtomicBool>::default();
        let fails = is_failing.clone();
        let server = ScriptedBackend::start(move |_| {
            let fails = fails.load(Ordering::Relaxed);
            let status = if fails {
                "503 Service Unavailable"
            } else {
                "200 OK"
            };
            vec![Step::Send(json(status, ""))]
        })
        .await;
        Self {
            server,
            is_failing,
            taken: 0,
        }
    }

    /// Waits for the next message.
    async fn next(&mut self) -> Value {
        self.server.until_received(self.taken + 1).await;
        let Seen { head, body, .. } = self.server.seen().swap_remove(self.taken);
        self.taken += 1;
        assert!(head.starts_with("POST /hook/secret "), "{head}");
        assert!(
            head.contains("\r\ncontent-type: application/json\r\n"),
            "{head}"
        );
        serde_json::from_slice(&body).unwrap()
    }

    fn assert_no_more_messages(&self) {
        assert_eq!(self.server.seen().len(), self.taken);
    }
}

fn settings(addresses: &[SocketAddr], retries: RetryTimes) -> WebhookSettings {
    let endpoint = |addr: &SocketAddr| Receiver {
        address: BackendAddress::parse(&addr.to_string()).unwrap(),
        path: "/hook/secret".parse().unwrap(),
        authorization: None,
    };
    WebhookSettings {
        endpoints: addresses.iter().map(endpoint).collect(),
        gateway: "gateway-0:9090".to_owned(),
        runbooks: "http://gateway:9090/runbooks".to_owned(),
        retries,
    }
}

fn notifier(addresses: &[SocketAddr], max_requests: u32) -> WebhookNotifier {
    let notifier = WebhookNotifier::default();
    let retries = RetryTimes {
        max_requests,
        first_pause: Duration::from_millis(1),
    };
    notifier.configure(settings(addresses, retries));
    notifier
}

/// Reports a verdict that begins at `start`, and reports it once more when it has lasted long enough for a
/// message to webhooks.
fn begin(notifier: &WebhookNotifier, start: Instant) {
    let verdict = Verdict {
        verdict: "kv_thrashing".into(),
        backend: "gpu-0".into(),
        ..Verdict::default()
    };
    let diagnosis = Diagnosis {
        verdicts: vec![verdict],
        ..Diagnosis::default()
    };
    for passed in [Duration::ZERO, BEGINS_AFTER] {
        notifier.on_diagnosis(&diagnosis, start + passed, SystemTime::now());
    }
}

#[tokio::test]
async fn start_and_end_give_one_message_each() {
    let mut webhook = ScriptedWebhook::start().await;
    let (notifier, start) = (notifier(&[webhook.server.addr], 3), Instant::now());
    begin(&notifier, start);
    notifier.on_diagnosis(
        &Diagnosis::default(),
        start + BEGINS_AFTER + ENDS_AFTER,
        SystemTime::now(),
    );
    let (first, last) = (webhook.next().await, webhook.next().await);
    assert_eq!(
        (&first["event"], &first["verdict"]),
        (&"begin".into(), &"kv_thrashing".into())
    );
    assert_eq!(
        (&last["event"], &last["backend"]),
        (&"end".into(), &"gpu-0".into())
    );
    assert!(
        first["text"]
            .as_str()
            .unwrap()
            .contains("kv_thrashing at gpu-0"),
        "{first}"
    );
    wait_until!(notifier.status()[0].ok == 2);
    webhook.assert_no_more_messages();
}

#[tokio::test]
async fn a_failed_message_delays_no_other_webhook() {
    // This listener accepts connections, but never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut failing, mut healthy) = (
        ScriptedWebhook::start().await,
        ScriptedWebhook::start().await,
    );
    failing.is_failing.store(true, Ordering::Relaxed);
    let addresses = [
        silent.local_addr().unwrap(),
        failing.server.addr,
        healthy.server.addr,
    ];
    let (notifier, start) = (notifier(&addresses, 3), Instant::now());
    begin(&notifier, start);
    healthy.next().await;
    for _ in 0..3 {
        assert_eq!(failing.next().await["event"], "begin");
    }
    wait_until!(notifier.status()[1].failed == 1);
    let status = notifier.status();
    let error = status[1].error.as_deref();
    assert_eq!(
        error,
        Some("it responded with status 503 Service Unavailable")
    );
    assert_eq!(
        (status[0].ok, status[1].ok, status[2].error.is_none()),
        (0, 0, true),
        "{status:?}"
    );
    failing.is_failing.store(false, Ordering::Relaxed);
    notifier.on_diagnosis(
        &Diagnosis::default(),
        start + BEGINS_AFTER + ENDS_AFTER,
        SystemTime::now(),
    );
    assert_eq!(
        failing.next().await["event"],
        "end",
        "the begin was dropped"
    );
    wait_until!(notifier.status()[1].error.is_none());
}

#[tokio::test]
async fn a_reload_loses_no_message() {
    let mut webhook = ScriptedWebhook::start().await;
    webhook.is_failing.store(true, Ordering::Relaxed);
    let notifier = WebhookNotifier::default();
    let retries = RetryTimes {
        max_requests: 3,
        first_pause: Duration::from_hours(1),
    };
    let mut settings = settings(&[webhook.server.addr], retries);
    notifier.configure(settings.clone());
    begin(&notifier, Instant::now());
    let message = webhook.next().await;
    wait_until!(notifier.status()[0].error.is_some());
    webhook.is_failing.store(false, Ordering::Relaxed);
    // A reload that does not concern the webhook does not send the message sooner.
    notifier.configure(settings.clone());
    settings.endpoints[0].authorization = Some("Bearer new".parse().unwrap());
    notifier.configure(settings);
    assert_eq!(webhook.next().await, message);
    wait_until!(notifier.status()[0].ok == 1);
    webhook.assert_no_more_messages();
}

#[tokio::test]
async fn secret_urls_and_tokens_are_not_shown() {
    let backend = ScriptedBackend::answering(stream_of(&WHOLE_STREAM)).await;
    let webhook = ScriptedWebhook::start().await;
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
    let hook = format!("http://{}/hook/secret", webhook.server.addr);
    let gateway =
        GatewayProcess::start_with(&file, &[("HOOK", &hook), ("TOKEN", "abc"), ("WORD", "x")])
            .await;
    for page in ["/status", "/config"] {
        let shown = gateway.get(page).await;
        assert!(
            !shown.contains("hook/secret") && !shown.contains("abc"),
            "{page}: {shown}"
        );
    }
    assert!(
        gateway
            .get("/status")
            .await
            .contains(&format!("\"webhook\":\"{}\"", webhook.server.addr))
    );
    for (secrets, problem) in [
        ("url: { env: ABSENT }", "cannot read the URL of webhooks[0]"),
        (
            "url: { env: HOOK }, token: { env: ABSENT }",
            "cannot read the token of webhooks[0]",
        ),
        ("url: { env: WORD }, token: { env: WORD }", "webhooks"),
    ] {
        write(secrets);
        let reloaded = gateway.reload().await;
        assert!(reloaded.contains(problem), "{reloaded}");
    }
    webhook.assert_no_more_messages();
}

//! Alerts that the gateway posts to Alertmanagers: they fire, are repeated and end, with the token of
//! the configuration, and an Alertmanager that does not respond changes nothing for the others.

use crate::support::certificates::{Authority, Files, start_tls_terminator};
use crate::support::process::GatewayProcess;
use crate::support::scripted_backend::{FINISH, ROLE, ScriptedBackend, USAGE, WORD, stream_of};
use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokenweir::alertmanager::{
    ANOMALY_RULE, AlertRule, AlertmanagerEndpoint, AlertmanagerNotifier, AlertmanagerSettings,
    SendIntervals, VERDICT_RULE,
};
use tokenweir_core::address::BackendAddress;
use tokenweir_core::units::duration;
use tokenweir_diagnose::{Diagnosis, Verdict};
use tokenweir_net::tls::{Alpn, Credentials, OutboundTls, TlsClientContext, TlsClientSettings};
use tokenweir_operations::alerts;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// A received request: its `Authorization` header, and its alerts.
type Received = (Option<String>, Vec<Value>);

/// An Alertmanager that responds with a status.
struct ScriptedAlertmanager {
    addr: SocketAddr,
    status: Arc<AtomicU16>,
    received: mpsc::UnboundedReceiver<Received>,
}

impl ScriptedAlertmanager {
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
        let router = Router::new().route("/prefix/api/v2/alerts", post(accept));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await });
        Self { addr, status, received }
    }

    /// The next request that fulfils a condition.
    async fn request_when(&mut self, is_it: impl Fn(&[Value]) -> bool) -> Received {
        let wait = async {
            loop {
                let received = self.received.recv().await.unwrap();
                if is_it(&received.1) {
                    return received;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap()
    }
}

fn endpoint(addr: SocketAddr) -> AlertmanagerEndpoint {
    AlertmanagerEndpoint {
        address: BackendAddress::parse(&addr.to_string()).unwrap(),
        path: "/prefix/api/v2/alerts".parse().unwrap(),
        outbound: OutboundTls::with_native_roots(Alpn::Http1),
        authorization: None,
        runbooks: "http://gateway:9090/runbooks".to_owned(),
    }
}

/// Settings with short times between requests.
fn settings(endpoints: Vec<AlertmanagerEndpoint>) -> AlertmanagerSettings {
    AlertmanagerSettings {
        endpoints,
        instance: "gateway-0:9090".to_owned(),
        intervals: SendIntervals {
            min: Duration::from_millis(10),
            retry: Duration::from_millis(10),
            resend: Duration::from_millis(100),
        },
    }
}

fn notifier(addresses: &[SocketAddr]) -> AlertmanagerNotifier {
    let notifier = AlertmanagerNotifier::default();
    notifier.configure(settings(addresses.iter().copied().map(endpoint).collect()));
    notifier
}

fn diagnosis() -> Diagnosis {
    let verdict =
        Verdict { verdict: "kv_thrashing".into(), backend: "gpu-0".into(), ..Verdict::default() };
    Diagnosis { verdicts: vec![verdict], ..Diagnosis::default() }
}

/// Reports a diagnosis for as long as the alert needs to fire. The times are arguments.
fn fire(notifier: &AlertmanagerNotifier, start: Instant) -> SystemTime {
    let now = SystemTime::now();
    for passed in [Duration::ZERO, VERDICT_RULE.holds_for] {
        notifier.update(&diagnosis(), start + passed, now);
    }
    now
}

#[tokio::test]
async fn a_verdict_that_holds_is_posted_repeated_and_resolved() {
    let mut alertmanager = ScriptedAlertmanager::start().await;
    let notifier = notifier(&[alertmanager.addr]);
    alertmanager.request_when(<[Value]>::is_empty).await;
    let start = Instant::now();
    let now = fire(&notifier, start);
    let is_firing = |alerts: &[Value]| !alerts.is_empty();
    let (_, first) = alertmanager.request_when(is_firing).await;
    let (_, repeated) = alertmanager.request_when(is_firing).await;
    assert_eq!(first[0]["labels"]["verdict"], "kv_thrashing");
    assert_eq!(first[0]["labels"], repeated[0]["labels"]);
    assert_eq!(first[0]["startsAt"], repeated[0]["startsAt"]);
    let time = |alert: &Value| humantime::parse_rfc3339(alert["endsAt"].as_str().unwrap()).unwrap();
    assert!(time(&repeated[0]) >= time(&first[0]));
    assert!(time(&first[0]) > now + Duration::from_mins(4), "it outlives lost requests");
    let end = start + VERDICT_RULE.holds_for + VERDICT_RULE.stays_for;
    notifier.update(&Diagnosis::default(), end, now);
    let is_resolved = |alerts: &[Value]| alerts.iter().any(|alert| time(alert) <= now);
    let (_, resolved) = alertmanager.request_when(is_resolved).await;
    assert_eq!(resolved[0]["labels"], first[0]["labels"]);
    notifier.update(&Diagnosis::default(), end + Duration::from_mins(6), now);
    alertmanager.request_when(<[Value]>::is_empty).await;
}

#[tokio::test]
async fn an_alertmanager_that_fails_is_reported_and_recovers_and_delays_no_other() {
    // Accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut failing, mut healthy) =
        (ScriptedAlertmanager::start().await, ScriptedAlertmanager::start().await);
    failing.status.store(503, Ordering::Relaxed);
    let addresses = [silent.local_addr().unwrap(), failing.addr, healthy.addr];
    let notifier = notifier(&addresses);
    fire(&notifier, Instant::now());
    let is_firing = |alerts: &[Value]| !alerts.is_empty();
    healthy.request_when(is_firing).await;
    // The second request begins after the result of the first one is counted.
    failing.request_when(is_firing).await;
    failing.request_when(is_firing).await;
    let status = notifier.status(Instant::now());
    assert_eq!((status[0].ok, status[0].failed, status[1].ok), (0, 0, 0), "{status:?}");
    assert_eq!(
        status[1].error.as_deref(),
        Some("it responded with status 503 Service Unavailable")
    );
    assert!(status[1].failed >= 1 && status[2].error.is_none(), "{status:?}");
    failing.status.store(200, Ordering::Relaxed);
    wait_until!(notifier.status(Instant::now())[1].error.is_none());
    assert!(notifier.status(Instant::now())[1].ok >= 1);
}

#[tokio::test]
async fn an_untrusted_alertmanager_gets_no_alerts_until_its_authority_is_in_the_file() {
    let (files, authority) = (Files::new("alertmanager"), Authority::new());
    let mut alertmanager = ScriptedAlertmanager::start().await;
    let pair = authority.signs("127.0.0.1", 2040);
    let addr = start_tls_terminator(alertmanager.addr, &pair, None, &[]).await;
    let ca = files.write("ca.pem", &Authority::new().pem());
    let tls = TlsClientSettings { ca: Some(ca), ..TlsClientSettings::default() };
    let credentials = Arc::<Credentials>::default();
    let notifier = AlertmanagerNotifier::new(credentials.clone());
    notifier.configure(settings(vec![AlertmanagerEndpoint {
        address: BackendAddress::parse(&format!("https://{addr}")).unwrap(),
        outbound: OutboundTls::new(TlsClientContext::new(&tls, Alpn::Http1).unwrap()),
        ..endpoint(addr)
    }]));
    wait_until!(notifier.status(Instant::now())[0].failed > 0);
    let error = notifier.status(Instant::now()).remove(0).error.unwrap();
    assert!(error.contains("UnknownIssuer"), "{error}");
    assert!(alertmanager.received.try_recv().is_err(), "no request passed");
    files.write("ca.pem", &authority.pem());
    credentials.reload_changed_files();
    alertmanager.request_when(<[Value]>::is_empty).await;
    wait_until!(notifier.status(Instant::now())[0].error.is_none());
}

#[tokio::test]
async fn the_program_posts_with_the_token_of_the_configuration_and_follows_a_reload() {
    let backend =
        ScriptedBackend::answering(stream_of(&[ROLE, WORD, FINISH, USAGE, "[DONE]"])).await;
    let (mut one, mut two) =
        (ScriptedAlertmanager::start().await, ScriptedAlertmanager::start().await);
    let folder = std::env::temp_dir().join(format!("tokenweir-alerts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("gateway.yaml");
    let write = |url: String, token: &str, ca: Option<&Path>| {
        let tls = ca.map_or("null".to_owned(), |ca| format!("{{ ca: '{}' }}", ca.display()));
        let text = format!(
            "listen: 127.0.0.1:0\nbackends: [{{ url: \"http://{}\" }}]\n\
             alertmanagers: [{{ url: \"{url}/prefix\", token: {token}, tls: {tls} }}]\n",
            backend.addr
        );
        std::fs::write(&file, text).unwrap();
    };
    write(format!("http://{}", one.addr), "{ env: TOKEN }", None);
    let gateway = GatewayProcess::start_with(&file, &[("TOKEN", "abc")]).await;
    let (token, alerts) = one.request_when(|_| true).await;
    assert_eq!((token.as_deref(), alerts.len()), (Some("Bearer abc"), 0));
    let (files, authority) = (Files::new("alertmanager-program"), Authority::new());
    let pair = authority.signs("127.0.0.1", 2040);
    let tls_addr = start_tls_terminator(two.addr, &pair, None, &[]).await;
    let url = format!("https://{tls_addr}");
    write(url.clone(), "{ env: ABSENT }", None);
    let refused = gateway.reload().await;
    assert!(refused.contains("cannot read the token of alertmanagers[0]"), "{refused}");
    write(url.clone(), "null", Some(Path::new("absent.pem")));
    let refused = gateway.reload().await;
    assert!(refused.contains("cannot use the TLS settings of alertmanagers[0]"), "{refused}");
    write(url, "null", Some(&files.write("ca.pem", &authority.pem())));
    let applied = gateway.reload().await;
    assert!(applied.contains("alertmanagers"), "{applied}");
    assert_eq!(two.request_when(|_| true).await.0, None);
    let accepted = "tokenweir_alertmanager_requests_total{result=\"ok\"}";
    wait_until!(gateway.value(accepted).await >= 1.0);
    assert!(gateway.value("tokenweir_alertmanager_age_seconds").await < 60.0);
    let status = gateway.get("/status").await;
    assert!(status.contains(&format!("\"alertmanager\":\"{tls_addr}\"")), "{status}");
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn names_and_times_are_those_of_the_rules_of_prometheus() {
    for AlertRule { name, holds_for, stays_for } in [VERDICT_RULE, ANOMALY_RULE] {
        let alert = alerts::all().into_iter().find(|alert| alert.name == name).unwrap();
        let parse = |text| duration::parse(text).unwrap();
        assert_eq!(parse(alert.holds_for), holds_for, "{name}");
        assert_eq!(alert.stays_for.map(parse), Some(stays_for), "{name}");
        assert_eq!((alert.severity.as_str(), alert.area), ("ticket", "diagnosis"), "{name}");
    }
}

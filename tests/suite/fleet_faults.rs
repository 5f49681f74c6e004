//! Faults of the fleet, staged in front of the program: the status page, the diagnosis, the log and
//! the metrics must name the fault at once, in the same words.

use crate::metrics::value;
use crate::restart::{folder, model, start_backends};
use crate::support::scripted_backend::{Page, ScriptedBackend, json};
use crate::support::test_gateway::{self, body, gateway_answering, post, read_rest, status};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokenweir_api::{GatewaySnapshot, GatewayState};
use tokenweir_diagnose::{Diagnosis, VerdictSeverity};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

/// A running program, with its log so far.
struct Program {
    _child: Child,
    clients: SocketAddr,
    admin: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Program {
    /// Starts the program in front of these backends. `settings` are further lines of its
    /// configuration.
    async fn start(name: &str, backends: &[SocketAddr], settings: &str) -> Self {
        let file = folder(name).join("gateway.yaml");
        let mut config = format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{settings}backends:\n");
        for (number, addr) in backends.iter().enumerate() {
            writeln!(config, "  - {{ name: gpu-{number}, url: \"http://{addr}\" }}").unwrap();
        }
        fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir"));
        command.args(["serve", "--log-format", "human", "--access-log", "false", "--config"]);
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut addrs, mut banner) = (Vec::<SocketAddr>::new(), String::new());
        while addrs.len() < 2 {
            let line = lines.next_line().await.unwrap().expect("a banner");
            let url = line.split("http://").nth(1).map(str::to_owned);
            let is_listener = ["clients ", "admin "].iter().any(|it| line.trim().starts_with(it));
            let addr = url.and_then(|url| url.split([' ', '/']).next()?.parse::<SocketAddr>().ok());
            addrs.extend(addr.filter(|_| is_listener));
            banner.push_str(&line);
            banner.push('\n');
        }
        let log = Arc::new(Mutex::new(banner));
        let written = log.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let mut log = written.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { _child: child, clients: addrs[0], admin: addrs[1], log }
    }

    async fn operate(&self, method: &str, path: &str) -> Vec<u8> {
        operate(self.admin, method, path).await
    }

    async fn live(&self) -> GatewaySnapshot {
        serde_json::from_slice(&body(&self.operate("GET", "/streams").await).0).unwrap()
    }

    /// Waits until the diagnosis has this verdict.
    async fn diagnosis_with(&self, verdict: &str) -> Diagnosis {
        wait_for!({
            let page = body(&self.operate("GET", "/diagnose").await).0;
            let diagnosis: Diagnosis = serde_json::from_slice(&page).unwrap();
            let is_found = diagnosis.verdicts.iter().any(|other| other.verdict == verdict);
            is_found.then_some(diagnosis)
        })
    }

    /// Waits until the log has these words.
    async fn logged(&self, words: &str) {
        wait_until!(self.log.lock().unwrap().contains(words));
    }

    /// The output and the exit code of a command for the admin listener.
    async fn command(&self, arguments: &[&str]) -> (String, i32) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir"));
        command.args(arguments).args(["--admin", &format!("http://{}", self.admin)]);
        let output = command.env("COLUMNS", "200").stdin(Stdio::null()).output().await.unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap())
    }
}

async fn operate(admin: SocketAddr, method: &str, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(admin).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {admin}\r\ncontent-type: application/json\r\n\
         content-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    read_rest(stream).await
}

/// Clients that send requests until they are dropped.
fn overload(gateway: SocketAddr, clients: usize, is_over: &Arc<AtomicBool>) -> JoinSet<()> {
    let request = format!(
        r#"{{"model":"{}","max_tokens":40,"messages":[{{"role":"user","content":"hi"}}]}}"#,
        model()
    );
    let request = Arc::new(post("/v1/chat/completions", &request));
    let mut running = JoinSet::new();
    for _ in 0..clients {
        let (request, is_over) = (request.clone(), is_over.clone());
        running.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let mut stream = TcpStream::connect(gateway).await.unwrap();
                stream.write_all(request.as_bytes()).await.unwrap();
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        });
    }
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_three_backends_drained_under_overload_are_named_with_the_refused_requests() {
    let backends = start_backends(3).await;
    let admission = "admission: { max_in_flight: 1, queue_capacity: 1 }\n";
    let program = Program::start("drained", &backends, admission).await;
    for name in ["gpu-0", "gpu-1"] {
        let path = format!("/-/drain?backend={name}&reason=new%20kernel&for=10m");
        assert_eq!(status(&program.operate("POST", &path).await), 200);
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let clients = overload(program.clients, 6, &is_over);
    let diagnosis = program.diagnosis_with("shedding").await;
    let names: Vec<_> =
        diagnosis.verdicts.iter().map(|it| (&*it.verdict, &*it.backend, it.severity)).collect();
    let critical = VerdictSeverity::Critical;
    assert_eq!(
        names[..3],
        [
            ("shedding", "", critical),
            ("backend_drained", "gpu-0", critical),
            ("backend_drained", "gpu-1", critical)
        ]
    );
    let cause = |index: usize| diagnosis.verdicts[index].cause.as_deref().unwrap();
    assert_eq!(cause(0), "1 of 3 backends get requests: 2 drained");
    assert!(cause(1).starts_with("drained by an operator at 127.0.0.1 "), "{}", cause(1));
    assert!(cause(1).ends_with(": new kernel") && cause(1).contains("more"), "{}", cause(1));
    let undetermined: Vec<_> =
        diagnosis.undetermined.iter().filter(|it| it.backend == "gpu-0").collect();
    assert!(undetermined.iter().all(|it| it.missing[0] == "requests: the backend is drained"));

    let live = program.live().await;
    assert_eq!(live.state, GatewayState::Refusing);
    assert!(live.state_reasons[0].ends_with("% of requests are refused"), "{live:?}");
    assert_eq!(live.state_reasons[1], "2 of 3 backends drained");
    assert!(live.backends_by_condition.contains("2 drained"), "{}", live.backends_by_condition);
    assert_eq!(live.last_minute.failed, 0);
    assert!(live.last_minute.refused > 0);
    let drain = live.backends.iter().find(|it| it.name == "gpu-0").unwrap().drain.clone().unwrap();
    assert_eq!(
        (drain.by.as_str(), drain.reason.as_deref()),
        ("an operator at 127.0.0.1", Some("new kernel"))
    );
    assert!(drain.remaining_seconds.is_some_and(|left| left < 600.0));

    let (report, code) = program.command(&["diagnose"]).await;
    assert!(report.starts_with("critical  all backends: The gateway refuses requests"), "{report}");
    assert_eq!(code, 2);
    let (frame, _) = program.command(&["top", "--once"]).await;
    let mut lines = frame.lines();
    assert!(lines.next().unwrap().contains("  refusing  "), "{frame}");
    assert!(lines.next().unwrap().contains("% of requests are refused"), "{frame}");
    assert!(!frame.contains("  ready  "), "{frame}");

    let page = String::from_utf8(program.operate("GET", "/metrics").await).unwrap();
    for (series, expected) in [
        ("tokenweir_backend_up{backend=\"gpu-0\"}", 0.0),
        ("tokenweir_backend_up{backend=\"gpu-2\"}", 1.0),
        ("tokenweir_backend_state{backend=\"gpu-1\",state=\"drained\"}", 1.0),
        ("tokenweir_verdicts{verdict=\"shedding\",verdict_severity=\"critical\"}", 1.0),
        ("tokenweir_verdicts{verdict=\"backend_drained\",verdict_severity=\"critical\"}", 2.0),
        ("tokenweir_diagnosis_active{backend=\"\",verdict=\"shedding\"}", 1.0),
    ] {
        assert!((value(&page, series) - expected).abs() < 1e-9, "{series}");
    }
    program.logged("backend drained: it gets no new requests").await;
    program.logged("requests are refused: this is the first one").await;
    program.logged("verdict begins: The gateway refuses requests").await;
    let log = program.log.lock().unwrap().clone();
    assert_eq!(log.matches("requests are refused: this is the first one").count(), 1, "{log}");
    assert!(log.contains("an operator at 127.0.0.1") && log.contains("new kernel"), "{log}");
    is_over.store(true, Ordering::Relaxed);
    clients.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_backend_is_named_with_its_reason() {
    let backends = start_backends(1).await;
    // Accepts connections into the backlog of the kernel, and never answers.
    let hung = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addrs = [backends[0], hung.local_addr().unwrap()];
    let program = Program::start("hung", &addrs, "scrape: { timeout: 300ms }\n").await;
    let diagnosis = program.diagnosis_with("backend_down").await;
    let first = &diagnosis.verdicts[0];
    assert_eq!((&*first.backend, first.severity), ("gpu-1", VerdictSeverity::Warning));
    let cause = first.cause.as_deref().unwrap();
    assert!(cause.contains("accepts connections and does not respond"), "{cause}");
    let live = program.live().await;
    assert_eq!(live.state, GatewayState::Degraded);
    assert_eq!(live.state_reasons, ["1 of 2 backends down"]);
    assert_eq!(live.backends_by_condition, "1 ok, 1 down");
    let (frame, _) = program.command(&["top", "--once"]).await;
    assert!(frame.contains("accepts connections and does not respond"), "{frame}");
    program.logged("accepts connections and does not respond").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_sleeps_has_no_capacity() {
    const ASLEEP: &str = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n\
                          vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0\n";
    let fakes = [
        ScriptedBackend::answering(json("200 OK", "{}")).await,
        ScriptedBackend::answering(json("200 OK", "{}")).await,
    ];
    for fake in &fakes {
        fake.set_metrics(Some(Page::of(ASLEEP)));
    }
    let program = Program::start("asleep", &fakes.each_ref().map(|fake| fake.addr), "").await;
    let diagnosis = program.diagnosis_with("no_capacity").await;
    let first = &diagnosis.verdicts[0];
    assert_eq!((&*first.backend, first.severity), ("", VerdictSeverity::Critical));
    assert_eq!(first.cause.as_deref(), Some("2 asleep"));
    let live = program.live().await;
    assert_eq!(live.state, GatewayState::Down);
    assert_eq!(live.state_reasons, ["no backend is available (2 backends: 2 asleep)"]);
    assert_eq!(status(&program.operate("GET", "/readyz").await), 503);
    program.logged("no backend is available").await;
}

#[tokio::test]
async fn a_drain_request_with_a_mistake_is_rejected_with_the_reason() {
    let (fake, gateway) = gateway_answering(json("200 OK", "{}")).await;
    let long = "x".repeat(201);
    for (verb, parameters, words) in [
        ("drain", "", "missing field `backend`"),
        ("drain", "&untill=5m", "unknown field `untill`"),
        ("drain", "&for=10", "such as 250ms"),
        ("drain", "&for=0s", "longer than zero"),
        ("drain", "&reason=a%0Ab", "control character"),
        ("drain", &format!("&reason={long}"), "more than 200 characters"),
        ("undrain", "&for=5m", "of /-/drain only"),
    ] {
        let backend =
            if parameters.is_empty() { String::new() } else { format!("backend={}", fake.addr) };
        let path = format!("/-/{verb}?{backend}{parameters}");
        let answer = operate(gateway.admin, "POST", &path).await;
        assert_eq!(status(&answer), 400, "{path}");
        let document: Value = serde_json::from_slice(&body(&answer).0).unwrap();
        assert!(document["error"].as_str().unwrap().contains(words), "{document}");
    }
    assert!(!gateway.pool.backends()[0].health.is_drained());
}

#[tokio::test]
async fn a_drain_names_the_token_and_is_replaced_by_a_second_drain() {
    use tokenweir::admin::AdminAuthorizer;
    use tokenweir_request::access::KeyDigest;
    let fake = ScriptedBackend::answering(json("200 OK", "{}")).await;
    let guard = AdminAuthorizer {
        token_digest: Some(KeyDigest::from_key(b"operator")),
        ..AdminAuthorizer::default()
    };
    let setup = test_gateway::Setup { guard, ..test_gateway::Setup::default() };
    let gateway = test_gateway::start_with(&[fake.addr], setup).await;
    for reason in ["one", "two"] {
        let mut stream = TcpStream::connect(gateway.admin).await.unwrap();
        let request = format!(
            "POST /-/drain?backend={}&reason={reason} HTTP/1.1\r\nhost: g\r\n\
             authorization: Bearer operator\r\ncontent-type: application/json\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n",
            fake.addr
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(status(&read_rest(stream).await), 200);
    }
    let drain = gateway.pool.backends()[0].health.drain().unwrap();
    let by = "an operator at 127.0.0.1 with the admin token";
    assert_eq!((drain.initiator.to_string().as_str(), drain.reason.as_deref()), (by, Some("two")));
}

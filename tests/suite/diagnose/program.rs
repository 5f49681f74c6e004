//! `tokenweir diagnose` as a program, and what a gateway puts up.

use crate::metrics::samples;
use crate::support::fake::{Fake, Page, Step, json};
use crate::support::gateway::{Setup, start_with};
use serde_json::Value;
use std::process::{Command, Output};
use std::sync::Arc;
use tokenweir_diagnose::{Board, Confidence, Diagnosis, Severity, Verdict, Watched};
use tokenweir_sim::{Settings, Sim};
use tokio::net::TcpListener;

async fn diagnose(arguments: String) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir"));
    command.arg("diagnose").args(arguments.split(' ')).env_clear();
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

async fn report(arguments: String) -> (Value, i32) {
    let output = diagnose(format!("--json {arguments}")).await;
    let text = String::from_utf8_lossy(&output.stdout);
    (serde_json::from_str(&text).expect(&text), output.status.code().unwrap())
}

fn found(severity: Severity) -> Verdict {
    Verdict {
        verdict: "kv_thrashing".into(),
        backend: "b0".into(),
        severity,
        confidence: Confidence::High,
        meaning: "The KV cache is too small.".into(),
        cause: None,
        age_seconds: 30.0,
        evidence: Vec::new(),
        remedy: "Lower --max-num-seqs.".into(),
        disproof: "Preemptions stop.".into(),
        runbook: "docs/diagnose.md#kv_thrashing".into(),
    }
}

fn board(backend: &str, verdicts: Vec<Verdict>) -> Arc<Board> {
    let board = Arc::<Board>::default();
    let backends = vec![Watched { backend: backend.to_owned(), is_judged: true }];
    board.put(Diagnosis { verdicts, backends, ..Diagnosis::default() });
    board
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_watched_too_briefly_or_is_no_engine_cannot_be_told() {
    let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let sim = Sim::bind(&Settings { listen, replicas: 1, ..Settings::default() }).await.unwrap();
    let simulated = sim.addrs()[0];
    let _serving = tokio::spawn(sim.run(std::future::pending()));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = closed.local_addr().unwrap();
    drop(closed);
    let html = Fake::start(|_| Vec::new()).await;
    html.set_metrics(Some(Page::of("<html>hello</html>")));
    for (addr, missing) in [
        (simulated, "45 seconds of samples"),
        (html.addr, "45 seconds of samples"),
        (refused, "an answer: the replica is down"),
    ] {
        let (report, code) = report(format!("--backend http://{addr} --for 0s")).await;
        assert_eq!(code, 3, "{report:#}");
        let untold = report["cannot_tell"].as_array().unwrap();
        assert_eq!(untold.len(), tokenweir_diagnose::RULES.len());
        assert!(untold.iter().all(|it| it["missing"][0] == missing), "{report:#}");
        assert_eq!(report["backends"][0]["is_judged"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_gateway_has_found_is_on_each_of_its_pages_and_in_the_exit_code() {
    let fake = Fake::start(|_| Vec::new()).await;
    let addr = fake.addr.to_string();
    for (severity, limit, code) in [
        (Some(Severity::Critical), "warning", 2),
        (Some(Severity::Warning), "warning", 1),
        (Some(Severity::Warning), "critical", 0),
        (None, "warning", 0),
    ] {
        let verdicts =
            severity.map(|severity| Verdict { backend: addr.clone(), ..found(severity) });
        let diagnosis = board(&addr, verdicts.clone().into_iter().collect());
        let setup = Setup { diagnosis, ..Setup::default() };
        let gateway = start_with(&[fake.addr], setup).await;
        let arguments = format!("--admin http://{} --fail-on {limit}", gateway.admin);
        let (report, exit) = report(arguments).await;
        assert_eq!(exit, code, "{report:#}");
        let status = gateway.admin("/status").await;
        let status: Value = serde_json::from_str(status.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!(status["verdicts"], report["verdicts"]);
        let page = gateway.admin("/metrics").await;
        let of_verdict: Vec<f64> = samples(&page)
            .into_iter()
            .filter(|(series, _)| series.starts_with("tokenweir_verdict{"))
            .map(|(_, value)| value)
            .collect();
        assert_eq!(of_verdict.len(), tokenweir_diagnose::RULES.len());
        let found = f64::from(u8::from(verdicts.is_some()));
        assert!((of_verdict.iter().sum::<f64>() - found).abs() < 0.5, "{of_verdict:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_diagnosis_is_named_and_cannot_be_told() {
    let fake = Fake::start(|_| vec![Step::Send(json("404 Not Found", "{}"))]).await;
    let output = diagnose(format!("--admin http://{}", fake.addr)).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3));
    assert!(errors.contains("/diagnose") && errors.contains("admin port"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_engine_is_named_beside_what_cannot_be_told_of_it() {
    let html = Fake::start(|_| Vec::new()).await;
    html.set_metrics(Some(Page::of("<html>hello</html>")));
    let gateway = start_with(&[html.addr], Setup::default()).await;
    let admin = format!("give --admin http://{}", gateway.admin);
    for (addr, words) in [
        (html.addr, "/metrics has no page with the load of an engine: tokenweir doctor --backend"),
        (gateway.addr, "/metrics answers 404 Not Found"),
        (gateway.admin, admin.as_str()),
    ] {
        let output = diagnose(format!("--backend http://{addr} --for 0s")).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3));
        assert!(errors.starts_with(&format!("note: http://{addr}")), "{errors}");
        assert!(errors.contains(words), "{errors}");
    }
}

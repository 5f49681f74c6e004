//! The command `tokenweir diagnose`, run as a program, and the verdicts that a gateway reports.

use crate::metrics::samples;
use crate::restart::start_backends;
use crate::support::process::run_line;
use crate::support::scripted_backend::{Page, ScriptedBackend, Step, json};
use crate::support::test_gateway::{Setup, start_with};
use arc_swap::ArcSwap;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use tokenweir_diagnose::{Confidence, DiagnosedBackend, Diagnosis, Verdict, VerdictSeverity};

/// Runs `tokenweir diagnose` with these arguments. Returns its JSON report and its exit code.
async fn report(arguments: &str) -> (Value, i32) {
    let (code, text, _) = run_line(&format!("diagnose --json {arguments}"), &[]).await;
    (serde_json::from_str(&text).expect(&text), code.unwrap())
}

fn verdict(severity: VerdictSeverity) -> Verdict {
    Verdict {
        verdict: "kv_thrashing".into(),
        severity,
        confidence: Confidence::High,
        meaning: "The KV cache is too small.".into(),
        age_seconds: 30.0,
        remedy: "Lower --max-num-seqs.".into(),
        disproof: "Preemptions stop.".into(),
        ..Verdict::default()
    }
}

fn board(backend: &str, verdicts: Vec<Verdict>) -> Arc<ArcSwap<Diagnosis>> {
    let backends = vec![DiagnosedBackend {
        backend: backend.to_owned(),
        is_determined: true,
    }];
    let diagnosis = Diagnosis {
        verdicts,
        backends,
        ..Diagnosis::default()
    };
    Arc::new(ArcSwap::from_pointee(diagnosis))
}

/// Starts a server whose `/metrics` is not that of an engine.
async fn web_server() -> ScriptedBackend {
    let html = ScriptedBackend::start(|_| Vec::new()).await;
    html.set_metrics(Some(Page::of("<html>hello</html>")));
    html
}

#[tokio::test(flavor = "multi_thread")]
async fn without_samples_all_rules_are_undetermined() {
    let simulated = start_backends(1).await[0];
    let html = web_server().await;
    for (addr, missing) in [
        (simulated, "30 seconds of samples"),
        (html.addr, "30 seconds of samples"),
        (
            SocketAddr::from(([127, 0, 0, 1], 9)),
            "a response: the backend is down",
        ),
    ] {
        let (report, code) = report(&format!("--backend http://{addr} --duration 0s")).await;
        assert_eq!(code, 3, "{report:#}");
        let undetermined = report["undetermined"].as_array().unwrap();
        assert_eq!(undetermined.len(), tokenweir_diagnose::RULES.len());
        assert!(
            undetermined.iter().all(|it| it["missing"][0] == missing),
            "{report:#}"
        );
        assert_eq!(report["backends"][0]["is_determined"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_verdicts_set_the_exit_code() {
    let fake = ScriptedBackend::start(|_| Vec::new()).await;
    let addr = fake.addr.to_string();
    for (severity, limit, code) in [
        (Some(VerdictSeverity::Critical), "warning", 2),
        (Some(VerdictSeverity::Warning), "warning", 1),
        (Some(VerdictSeverity::Warning), "critical", 0),
        (None, "warning", 0),
    ] {
        let verdicts = severity.map(|severity| Verdict {
            backend: addr.clone(),
            ..verdict(severity)
        });
        let diagnosis = board(&addr, verdicts.clone().into_iter().collect());
        let setup = Setup {
            diagnosis,
            ..Setup::default()
        };
        let gateway = start_with(&[fake.addr], setup).await;
        let arguments = format!("--admin http://{} --fail-on {limit}", gateway.admin);
        let (report, exit) = report(&arguments).await;
        assert_eq!(exit, code, "{report:#}");
        let status = gateway.document("/status").await;
        assert_eq!(status["verdicts"], report["verdicts"]);
        let page = gateway.admin("/metrics").await;
        let is_of_verdict = |series: &str| series.starts_with("tokenweir_diagnosis_active{");
        let of_verdict: Vec<_> = samples(&page)
            .into_iter()
            .filter(|(series, _)| is_of_verdict(series))
            .collect();
        let verdict = verdicts.iter().map(|it| {
            let (backend, name) = (&it.backend, &it.verdict);
            (
                format!("tokenweir_diagnosis_active{{backend=\"{backend}\",verdict=\"{name}\"}}"),
                1.0,
            )
        });
        assert_eq!(of_verdict, verdict.collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_listener_is_an_error() {
    let fake = ScriptedBackend::start(|_| vec![Step::Send(json("404 Not Found", "{}"))]).await;
    let line = format!("diagnose --admin http://{}", fake.addr);
    let (code, _, errors) = run_line(&line, &[]).await;
    assert_eq!(code, Some(3));
    assert!(
        errors.contains("/diagnose") && errors.contains("admin listener"),
        "{errors}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_without_engine_is_named() {
    let html = web_server().await;
    let gateway = start_with(&[html.addr], Setup::default()).await;
    let admin = format!("give --admin http://{}", gateway.admin);
    for (addr, words) in [
        (
            html.addr,
            "/metrics has no page with the load of an engine: tokenweir doctor --backend",
        ),
        (gateway.addr, "/metrics answers 404 Not Found"),
        (gateway.admin, admin.as_str()),
    ] {
        let line = format!("diagnose --backend http://{addr} --duration 0s");
        let (code, _, errors) = run_line(&line, &[]).await;
        assert_eq!(code, Some(3));
        assert!(
            errors.starts_with(&format!("note: http://{addr}")),
            "{errors}"
        );
        assert!(errors.contains(words), "{errors}");
    }
}

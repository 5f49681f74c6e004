//! Faults of a fleet behind the real program. The status page, the diagnosis, the log and the metrics must
//! all name the fault at once and in the same words.

use crate::metrics::assert_value;
use crate::restart::{model, start_backends};
use crate::support::process::{self, GatewayProcess, Load, folder};
use crate::support::scripted_backend::json;
use crate::support::test_gateway::{
    AS_JSON, Setup, gateway_answering_with, operate, operator_token, status,
};
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use tokenweir_api::{GatewaySnapshot, GatewayState};
use tokenweir_diagnose::{Diagnosis, VerdictSeverity};
use tokio::net::TcpListener;

/// Starts the program in front of these backends. `settings` are further lines of its configuration.
async fn start(name: &str, backends: &[SocketAddr], settings: &str) -> GatewayProcess {
    let file = folder(name).join("gateway.yaml");
    let mut config = format!("listen: 127.0.0.1:0\n{settings}backends:\n");
    for (number, addr) in backends.iter().enumerate() {
        writeln!(
            config,
            "  - {{ name: gpu-{number}, url: \"http://{addr}\" }}"
        )
        .unwrap();
    }
    fs::write(&file, config).unwrap();
    GatewayProcess::start(&file).await
}

/// Waits until the diagnosis of the gateway has a verdict with this name. Returns the diagnosis.
async fn diagnosis_with(program: &GatewayProcess, verdict: &str) -> Diagnosis {
    wait_for!({
        let diagnosis: Diagnosis = program.document("/diagnose").await;
        let is_found = diagnosis
            .verdicts
            .iter()
            .any(|other| other.verdict == verdict);
        is_found.then_some(diagnosis)
    })
}

/// Runs `tokenweir` with these arguments and the address of the gateway in `--admin`. Returns its output and
/// its exit code.
async fn command(program: &GatewayProcess, arguments: &[&str]) -> (String, i32) {
    let admin = format!("http://{}", program.admin);
    let arguments = [arguments, &["--admin", &admin]].concat();
    let (code, out, _) = process::run(&arguments, &[("COLUMNS", "200")]).await;
    (out, code.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one run with many checks")]
async fn overload_names_refusals_and_drained_backends() {
    let backends = start_backends(3).await;
    let admission = "admission: { max_in_flight: 1, queue_capacity: 1 }\n";
    let program = start("drained", &backends, admission).await;
    for name in ["gpu-0", "gpu-1"] {
        let path = format!("/-/drain?backend={name}&reason=new%20kernel&for=10m");
        assert_eq!(
            status(&operate(program.admin, "POST", &path, AS_JSON).await),
            200
        );
    }
    let _load = Load::start(program.clients(), &model(), 6);
    let diagnosis = diagnosis_with(&program, "shedding").await;
    let names: Vec<_> = diagnosis
        .verdicts
        .iter()
        .map(|it| (&*it.verdict, &*it.backend, it.severity))
        .collect();
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
    assert!(
        cause(1).starts_with("drained by an operator at 127.0.0.1 "),
        "{}",
        cause(1)
    );
    assert!(
        cause(1).ends_with(": new kernel") && cause(1).contains("more"),
        "{}",
        cause(1)
    );
    let undetermined: Vec<_> = diagnosis
        .undetermined
        .iter()
        .filter(|it| it.backend == "gpu-0")
        .collect();
    assert!(
        undetermined
            .iter()
            .all(|it| it.missing[0] == "requests: the backend is drained")
    );

    let live: GatewaySnapshot = program.document("/streams").await;
    assert_eq!(live.state, GatewayState::Refusing);
    assert!(
        live.state_reasons[0].ends_with("% of requests are refused"),
        "{live:?}"
    );
    assert_eq!(live.state_reasons[1], "2 of 3 backends drained");
    assert!(
        live.backends_by_condition.contains("2 drained"),
        "{}",
        live.backends_by_condition
    );
    assert_eq!(live.last_minute.failed, 0);
    assert!(live.last_minute.refused > 0);
    let drain = live
        .backends
        .iter()
        .find(|it| it.name == "gpu-0")
        .unwrap()
        .drain
        .clone()
        .unwrap();
    assert_eq!(
        (drain.by.as_str(), drain.reason.as_deref()),
        ("an operator at 127.0.0.1", Some("new kernel"))
    );
    assert!(drain.remaining_seconds.is_some_and(|left| left < 600.0));

    let (report, code) = command(&program, &["diagnose"]).await;
    assert!(
        report.starts_with("critical  all backends: The gateway refuses requests"),
        "{report}"
    );
    assert_eq!(code, 2);
    let (frame, _) = command(&program, &["top", "--once"]).await;
    let mut lines = frame.lines();
    assert!(lines.next().unwrap().contains("  refusing  "), "{frame}");
    assert!(
        lines.next().unwrap().contains("% of requests are refused"),
        "{frame}"
    );
    assert!(!frame.contains("  ready  "), "{frame}");

    let page = program.get("/metrics").await;
    for (series, expected) in [
        ("tokenweir_backend_up{backend=\"gpu-0\"}", 0.0),
        ("tokenweir_backend_up{backend=\"gpu-2\"}", 1.0),
        (
            "tokenweir_backend_state{backend=\"gpu-1\",state=\"drained\"}",
            1.0,
        ),
        (
            "tokenweir_verdicts{verdict=\"shedding\",verdict_severity=\"critical\"}",
            1.0,
        ),
        (
            "tokenweir_verdicts{verdict=\"backend_drained\",verdict_severity=\"critical\"}",
            2.0,
        ),
        (
            "tokenweir_diagnosis_active{backend=\"\",verdict=\"shedding\"}",
            1.0,
        ),
    ] {
        assert_value(&page, series, expected);
    }
    wait_until!(
        program
            .log()
            .contains("backend drained: it gets no new requests")
    );
    wait_until!(
        program
            .log()
            .contains("the gateway begins to refuse requests")
    );
    wait_until!(
        program
            .log()
            .contains("verdict begins: The gateway refuses requests")
    );
    let log = program.log();
    assert_eq!(
        log.matches("the gateway begins to refuse requests").count(),
        1,
        "{log}"
    );
    assert!(
        log.contains("an operator at 127.0.0.1") && log.contains("new kernel"),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_view_says_why_a_backend_is_down() {
    let backends = start_backends(1).await;
    // The kernel accepts connections for this listener, but no program answers them.
    let hung = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addrs = [backends[0], hung.local_addr().unwrap()];
    let program = start("hung", &addrs, "scrape: { timeout: 300ms }\n").await;
    let diagnosis = diagnosis_with(&program, "backend_down").await;
    let first = &diagnosis.verdicts[0];
    assert_eq!(
        (&*first.backend, first.severity),
        ("gpu-1", VerdictSeverity::Warning)
    );
    let cause = first.cause.as_deref().unwrap();
    assert!(
        cause.contains("accepts connections and does not respond"),
        "{cause}"
    );
    let live: GatewaySnapshot = program.document("/streams").await;
    assert_eq!(live.state, GatewayState::Degraded);
    assert_eq!(live.state_reasons, ["1 of 2 backends down"]);
    assert_eq!(live.backends_by_condition, "1 ok, 1 down");
    let (frame, _) = command(&program, &["top", "--once"]).await;
    assert!(
        frame.contains("accepts connections and does not respond"),
        "{frame}"
    );
    wait_until!(
        program
            .log()
            .contains("accepts connections and does not respond")
    );
}

#[tokio::test]
async fn a_drain_records_the_admin_token() {
    let setup = Setup {
        guard: operator_token(),
        ..Setup::default()
    };
    let (fake, gateway) = gateway_answering_with(setup, json("200 OK", r#"{"a":1}"#)).await;
    for reason in ["one", "two"] {
        let path = format!("/-/drain?backend={}&reason={reason}", fake.addr);
        let headers = format!("{AS_JSON}authorization: Bearer operator\r\n");
        assert_eq!(
            status(&operate(gateway.admin, "POST", &path, &headers).await),
            200
        );
    }
    let drain = gateway.pool.backends()[0].health.drain().unwrap();
    let by = "an operator at 127.0.0.1 with the admin token";
    assert_eq!(
        (
            drain.initiator.to_string().as_str(),
            drain.reason.as_deref()
        ),
        (by, Some("two"))
    );
}

//! The command `tokenweir doctor`, run as a program. It checks simulated backends, scripted backends with one
//! fault each, and a running gateway.

use crate::capabilities::{is_excluded, round_robin};
use crate::restart::start_simulator;
use crate::support::certificates::{Authority, Files, start_tls_terminator};
use crate::support::process::{Ended, GatewayProcess, folder, run_line};
use crate::support::scripted_backend::{
    FINISH, Page, RAY_SERVE, ROLE, ScriptedBackend, Seen, Step, USAGE, WORD, json, response,
    stream_of,
};
use crate::support::test_gateway::{WHOLE, gateway_scripted, start_with, status};
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_sim::SimulatorSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Runs `tokenweir doctor` with these arguments and only these environment variables.
async fn doctor(arguments: &str, variables: &[(&str, &str)]) -> Ended {
    run_line(&format!("doctor {arguments}"), variables).await
}

/// Runs `tokenweir doctor` with these arguments. Returns its JSON report and its exit code.
async fn report(arguments: &str, variables: &[(&str, &str)]) -> (Value, i32) {
    let (code, text, errors) = doctor(&format!("--json {arguments}"), variables).await;
    assert!(errors.is_empty(), "{errors}");
    (serde_json::from_str(&text).expect(&text), code.unwrap())
}

/// Returns the findings of the check with the name `check` in a report.
fn found<'a>(report: &'a Value, check: &str) -> Vec<&'a Value> {
    let findings = report["findings"].as_array().unwrap();
    findings
        .iter()
        .filter(|finding| finding["check"] == check)
        .collect()
}

/// Returns the only finding of the check with the name `check` in a report. Fails if there is none or more
/// than one.
fn one<'a>(report: &'a Value, check: &str) -> &'a Value {
    let found = found(report, check);
    assert_eq!(found.len(), 1, "{check}: {report:#}");
    found[0]
}

async fn simulated(backends: u16, keep_alive: Duration) -> Vec<SocketAddr> {
    let keep_alive = keep_alive.into();
    start_simulator(SimulatorSettings {
        backends,
        keep_alive,
        ..SimulatorSettings::default()
    })
    .await
}

fn file(name: &str, text: &str) -> PathBuf {
    let file = folder("doctor").join(format!("{name}.yaml"));
    fs::write(&file, text).unwrap();
    file
}

fn nothing() -> Vec<Step> {
    vec![Step::Send(json("404 Not Found", "{}"))]
}

#[tokio::test(flavor = "multi_thread")]
async fn ray_serves_health_check_is_no_finding() {
    let fake = ScriptedBackend::start_kind(RAY_SERVE, |_| nothing()).await;
    fake.set_metrics(Some(Page::of(include_str!("../pages/vllm_on_ray.txt"))));
    let (report, _) = report(&format!("--backend {}", fake.addr), &[]).await;
    assert!(found(&report, "health").is_empty(), "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn healthy_backends_pass_with_their_metrics() {
    let addrs = simulated(2, Duration::from_secs(5)).await;
    let backends = addrs.iter().map(|addr| format!("--backend {addr} "));
    let arguments = format!("{}--probe --idle 0s", backends.collect::<String>());
    let (report, code) = report(&arguments, &[]).await;
    assert_eq!(
        (
            code,
            &report["counts"]["error"],
            &report["counts"]["warning"]
        ),
        (0, &0.into(), &0.into()),
        "{report:#}"
    );
    let backends = report["backends"].as_array().unwrap();
    assert_eq!(backends.len(), 2);
    for (backend, addr) in backends.iter().zip(&addrs) {
        assert_eq!(
            backend["name"],
            addr.to_string(),
            "in the order of the flags"
        );
        assert_eq!(backend["server"], "vllm");
        assert_eq!(
            backend["engine_metrics"]["kv_usage"],
            serde_json::json!(["vllm:kv_cache_usage_perc"])
        );
        assert_eq!(backend["probe"]["output_tokens"], 16);
    }
    assert!(
        found(&report, "exposed").is_empty(),
        "the simulator has no such paths: {report:#}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_keep_alive_timeout_is_measured() {
    let addrs = simulated(1, Duration::from_millis(500)).await;
    let (report, code) = report(&format!("--backend {} --idle 20s", addrs[0]), &[]).await;
    assert_eq!(code, 1);
    assert_eq!(one(&report, "keep_alive")["severity"], "warning");
    let after = &report["backends"][0]["idle_connection"]["closed_after_seconds"];
    assert!((0.4..10.0).contains(&after.as_f64().unwrap()), "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_unreachable_target_is_found() {
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let garbage = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let [hangs, speaks] = [&hanging, &garbage].map(|it| it.local_addr().unwrap());
    let _speaking = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = garbage.accept().await {
            let _ = stream.read(&mut [0; 64]).await;
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await;
            open.push(stream);
        }
    });
    let pair = Authority::new().signs("localhost", 2040);
    let believed = Files::new("doctor").write("other.pem", &Authority::new().pem());
    let tls = start_tls_terminator(speaks, &pair, None, &["http/1.1"]).await;
    let html = ScriptedBackend::start(|_| nothing()).await;
    html.set_metrics(Some(Page::of("<html>hello</html>")));
    for (url, check, words) in [
        ("http://127.0.0.1:9".to_owned(), "reachable", "refused"),
        (format!("http://{hangs}"), "reachable", "no answer within"),
        (format!("http://{speaks}"), "reachable", "not HTTP"),
        (format!("https://{speaks}"), "reachable", "TLS"),
        (
            format!("https://localhost:{}", tls.port()),
            "reachable",
            "UnknownIssuer",
        ),
        (
            format!("http://{}", html.addr),
            "metrics",
            "no page with the load",
        ),
    ] {
        let variables = [("SSL_CERT_FILE", believed.to_str().unwrap())];
        let arguments = format!("--backend {url} --timeout 2s --idle 0s");
        let (report, code) = report(&arguments, &variables).await;
        let finding = one(&report, check);
        assert!(
            finding["observation"].as_str().unwrap().contains(words),
            "{url}: {finding}"
        );
        assert_eq!((code, &finding["severity"]), (1, &"error".into()), "{url}");
        assert!(
            finding["remedy"].is_string() && finding["reason"].is_string(),
            "{finding}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_read_from_vllms_variable() {
    let fake = ScriptedBackend::start(|_| nothing()).await;
    fake.refuse_models("401 Unauthorized");
    let arguments = format!("--backend http://{} --idle 0s", fake.addr);
    let (without, code) = report(&arguments, &[]).await;
    assert_eq!(
        (code, &one(&without, "key")["severity"]),
        (1, &"error".into())
    );
    assert!(
        one(&without, "key")["remedy"]
            .as_str()
            .unwrap()
            .contains("VLLM_API_KEY")
    );
    let (with, _) = report(&arguments, &[("VLLM_API_KEY", "sk-doctor")]).await;
    assert!(
        one(&with, "key")["observation"]
            .as_str()
            .unwrap()
            .contains("refuses the key")
    );
    assert!(!with.to_string().contains("sk-doctor"));
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_with_effects_are_probed_harmlessly() {
    let fake = ScriptedBackend::start(|seen| {
        let is_sleep = seen.head.starts_with("OPTIONS /sleep ");
        let status = if is_sleep {
            "405 Method Not Allowed"
        } else {
            "404 Not Found"
        };
        vec![Step::Send(json(status, "{}"))]
    })
    .await;
    let (report, code) = report(&format!("--backend {} --idle 0s", fake.addr), &[]).await;
    assert_eq!(code, 1);
    let exposed = one(&report, "exposed");
    assert_eq!(exposed["severity"], "error");
    assert!(
        exposed["observation"].as_str().unwrap().ends_with("/sleep"),
        "{exposed}"
    );
    let seen = fake.seen();
    assert!(seen.len() > 20);
    let is_harmless =
        |head: &str| head.starts_with("OPTIONS ") || head.starts_with("GET /kv_event_sources ");
    assert!(
        seen.iter()
            .all(|seen| is_harmless(&seen.head) && seen.body.is_empty())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_probe_generates_tokens_and_shows_batching() {
    let fake = ScriptedBackend::start(|seen| {
        if !seen.head.starts_with("POST ") {
            return nothing();
        }
        let events = [
            ROLE, WORD, WORD, WORD, WORD, WORD, WORD, FINISH, USAGE, "[DONE]",
        ];
        vec![Step::Send(stream_of(&events))]
    })
    .await;
    let (report, code) = report(&format!("--backend {} --idle 0s --probe", fake.addr), &[]).await;
    assert_eq!(code, 1);
    assert!(
        one(&report, "stream")["observation"]
            .as_str()
            .unwrap()
            .contains("together"),
        "{report:#}"
    );
    assert!(
        one(&report, "cached_tokens")["remedy"]
            .as_str()
            .unwrap()
            .contains("prompt-tokens")
    );
    let requests = fake.seen();
    let requests: Vec<_> = requests
        .iter()
        .filter(|seen| seen.head.starts_with("POST "))
        .collect();
    assert_eq!(requests.len(), 3, "a single probe could be a coincidence");
    let body: Value = serde_json::from_slice(&requests[0].body).unwrap();
    assert_eq!(
        (&body["model"], &body["max_tokens"]),
        (&"tiny".into(), &16.into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_is_checked_with_its_targets() {
    let addrs = simulated(1, Duration::from_secs(5)).await;
    let collector = ScriptedBackend::start(|seen| {
        assert!(seen.head.starts_with("POST /v1/traces "), "{}", seen.head);
        vec![Step::Send(response("200 OK", "", ""))]
    })
    .await;
    let text = |collector: SocketAddr, model: &str| {
        format!(
            "backends: [{{ url: 'http://{}', name: gpu-0 }}]\n\
             models: [{{ name: gpt, served_as: {model} }}]\n\
             tracing: {{ endpoint: 'http://{collector}', protocol: http/protobuf }}\n",
            addrs[0]
        )
    };
    let right = file("right", &text(collector.addr, "sim-model"));
    let (well, code) = report(&format!("--config {} --idle 0s", right.display()), &[]).await;
    assert_eq!(code, 0, "{well:#}");
    assert_eq!(
        (&well["collector"]["problem"], &well["backends"][0]["name"]),
        (&Value::Null, &"gpu-0".into())
    );
    assert_eq!(collector.seen().len(), 1);
    let wrong = file(
        "wrong",
        &text(SocketAddr::from(([127, 0, 0, 1], 9)), "other"),
    );
    let (ill, code) = report(&format!("--config {} --idle 0s", wrong.display()), &[]).await;
    assert_eq!(code, 1);
    assert_eq!(one(&ill, "traces")["severity"], "error");
    assert!(
        one(&ill, "named_models")["observation"]
            .as_str()
            .unwrap()
            .contains("gpt leads to other")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_gateway_is_checked_with_its_backends() {
    let addrs = simulated(2, Duration::from_secs(5)).await;
    let text = format!(
        "listen: 127.0.0.1:0\nbackends:\n  - {{ url: 'http://{}', name: gpu-0 }}\n  \
         - {{ url: 'http://{}', name: gpu-1 }}\nmodels: [{{ name: gpt, served_as: nobody }}]\n\
         access: {{ admin_token: {{ env: TOKEN }} }}\n",
        addrs[0], addrs[1]
    );
    let gateway =
        GatewayProcess::start_with(&file("running", &text), &[("TOKEN", "letmein")]).await;
    let arguments = format!("--admin http://{} --idle 0s", gateway.admin);
    let (refused, code) = report(&arguments, &[]).await;
    assert_eq!(code, 1);
    assert!(
        one(&refused, "gateway")["remedy"]
            .as_str()
            .unwrap()
            .contains("TOKENWEIR_ADMIN_TOKEN")
    );
    let (report, code) = report(&arguments, &[("TOKENWEIR_ADMIN_TOKEN", "letmein")]).await;
    assert_eq!(code, 1);
    let names: Vec<_> = report["backends"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, ["gpu-0", "gpu-1"]);
    assert!(
        one(&report, "named_models")["observation"]
            .as_str()
            .unwrap()
            .contains("nobody")
    );
    assert!(found(&report, "gateway").is_empty(), "{report:#}");
}

/// The responses of vLLM's Rust front end, which does not serve some paths of the Python front end.
fn rust_front_end(seen: &Seen) -> Vec<Step> {
    let answer = match seen.head.split(' ').nth(1) {
        Some("/v1/messages") => json(
            "501 Not Implemented",
            r#"{"error":{"message":"not implemented","type":"NotImplementedError","param":null,"code":501}}"#,
        ),
        Some("/v1/responses") => json("404 Not Found", r#"{"detail":"Not Found"}"#),
        _ => json("200 OK", WHOLE),
    };
    vec![Step::Send(answer)]
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_paths_are_avoided_and_named() {
    let python = ScriptedBackend::answering(json("200 OK", WHOLE)).await;
    let rust = ScriptedBackend::start(rust_front_end).await;
    let page = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n# EOF\n";
    let open_metrics = "content-type: application/openmetrics-text\r\n";
    rust.set_metrics(Some(Page::Whole(response("200 OK", open_metrics, page))));
    let gateway = start_with(&[python.addr, rust.addr], round_robin()).await;
    let paths = [
        "/v1/messages",
        "/v1/messages",
        "/v1/responses",
        "/v1/responses",
    ];
    for path in [paths, paths].concat() {
        let ask = r#"{"model":"tiny","messages":[],"input":"hello"}"#;
        assert_eq!(status(&gateway.post(path, ask).await), 200, "{path}");
    }
    assert_eq!(
        rust.seen().len(),
        2,
        "one request for each path that it lacks"
    );
    let records = gateway.take_records().await;
    assert!(
        records
            .iter()
            .any(|record| is_excluded(record, "it does not serve the path"))
    );
    let status = gateway.document("/status").await;
    let of = |member: &str| [0, 1].map(|index| status["backends"][index][member].clone());
    assert_eq!(of("front_end"), ["python", "rust"]);
    assert_eq!(
        of("unserved"),
        [
            serde_json::json!([]),
            serde_json::json!(["/v1/messages", "/v1/responses"])
        ]
    );
    let (report, _) = report(&format!("--admin http://{} --idle 0s", gateway.admin), &[]).await;
    let lacks = |finding: &&Value| finding["observation"].as_str().unwrap().contains(" lacks ");
    let found = found(&report, "gateway");
    let lacks: Vec<_> = found.iter().copied().filter(lacks).collect();
    assert_eq!(lacks.len(), 1, "{report:#}");
    let observation = format!("{} lacks /v1/messages /v1/responses", rust.addr);
    assert_eq!(lacks[0]["observation"], observation);
    assert!(lacks[0]["remedy"].as_str().unwrap().contains("front end"));
    let front_ends = report["backends"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["front_end"]);
    assert_eq!(front_ends.collect::<Vec<_>>(), ["python", "rust"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn own_errors_and_findings_have_different_codes() {
    assert_eq!(doctor("", &[]).await.0, Some(2));
    assert_eq!(doctor("--backend http://a/v1", &[]).await.0, Some(2));
    assert_eq!(doctor("--config /absent.yaml", &[]).await.0, Some(64));
    let tls = "backends: [{ url: 'https://a:1', tls: { ca: /absent.pem } }]";
    let config = file("tls", tls);
    let (code, _, errors) = doctor(&format!("--config {}", config.display()), &[]).await;
    assert_eq!(code, Some(2));
    assert!(errors.contains("/absent.pem cannot be read"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_there_are_no_colours() {
    let refused = "--backend http://127.0.0.1:9";
    let (code, text, _) = doctor(refused, &[]).await;
    assert_eq!(code, Some(1));
    assert!(
        !text.contains('\x1b') && text.contains("error  127.0.0.1:9: cannot connect"),
        "{text}"
    );
    let (_, forced, _) = doctor(refused, &[("CLICOLOR_FORCE", "1")]).await;
    assert!(forced.contains('\x1b'), "{forced}");
    // A metrics page that lacks half of the metrics causes only a warning. `--fail-on error` ignores it.
    let half = ScriptedBackend::start(|_| nothing()).await;
    half.set_metrics(Some(Page::of(
        "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n",
    )));
    let arguments = format!("--backend {} --idle 0s", half.addr);
    assert_eq!(doctor(&arguments, &[]).await.0, Some(1));
    assert_eq!(
        doctor(&format!("{arguments} --fail-on error"), &[]).await.0,
        Some(0)
    );
}

/// Returns the text `observation` of each finding in a report.
fn seen(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|finding| finding["observation"].as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_as_backend_is_recognized() {
    let (_fake, gateway) = gateway_scripted(|_| nothing()).await;
    let admin = format!("tokenweir doctor --admin http://{}", gateway.admin);
    for (addr, words, change) in [
        (
            gateway.addr,
            "this is the client port of a tokenweir gateway",
            "give --admin",
        ),
        (
            gateway.admin,
            "this is the admin port of a tokenweir gateway",
            admin.as_str(),
        ),
    ] {
        let (report, code) = report(&format!("--backend {addr} --idle 0s"), &[]).await;
        assert_eq!((code, seen(&report)), (1, vec![words]), "{report:#}");
        let change_seen = one(&report, "server")["remedy"].as_str().unwrap();
        assert!(change_seen.starts_with(change), "{change_seen}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_server_is_no_engine() {
    let web = ScriptedBackend::start(|_| nothing()).await;
    for path in ["/health", "/metrics", "/v1/models", "/version"] {
        web.set_page(path, "404 Not Found", "");
    }
    let (report, code) = report(&format!("--backend {} --idle 0s", web.addr), &[]).await;
    let found = seen(&report);
    assert_eq!((code, found.len()), (1, 1), "{report:#}");
    assert!(
        found[0].starts_with("is not recognised as an inference server"),
        "{found:?}"
    );
    assert!(
        found[0].ends_with("/health answers 404 Not Found"),
        "{found:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_gateway_status_is_reported() {
    let fake = ScriptedBackend::start(|_| nothing()).await;
    for admin in ["127.0.0.1:9".to_owned(), fake.addr.to_string()] {
        let (report, code) = report(&format!("--admin http://{admin} --idle 0s"), &[]).await;
        assert_eq!((code, found(&report, "fleet").len()), (1, 0), "{report:#}");
        assert_eq!(one(&report, "gateway")["severity"], "error");
    }
}

//! `tokenweir-lab bench` as a program: against simulated backends, against a gateway, and against
//! faulty servers.

use crate::program;
use crate::support::scripted_backend::{
    FINISH, ROLE, ScriptedBackend, Seen, Step, WORD, json, stream_of,
};
use crate::support::simulated_fleet::Fleet;
use crate::support::test_gateway::Setup;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Disables the limit of the generator's delay, which a busy machine could exceed.
const IGNORE_LAG: &str = "--max-lag 1h";

fn command(arguments: &str) -> Command {
    program::command(&format!("bench {arguments}"))
}

async fn bench(arguments: &str) -> Output {
    program::run(command(arguments)).await
}

/// Runs the bench. Returns the report, which must be valid.
async fn report(arguments: &str) -> Value {
    program::report(&format!("bench {arguments} {IGNORE_LAG} --json")).await
}

/// Runs the bench. Returns the text that it prints. The run must end with this exit code.
async fn text(arguments: &str, code: i32) -> String {
    let output = bench(arguments).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

/// Asserts that a run fails with an error message that has these words.
async fn assert_error(arguments: &str, words: &str) {
    program::assert_error(&format!("bench {arguments}"), words).await;
}

/// Interrupts a run of the bench. Returns its report.
async fn interrupted(child: Child) -> Value {
    Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    let output = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap())
        .await
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

fn file(name: &str) -> PathBuf {
    program::file(&format!("bench-{name}"))
}

fn answer() -> Vec<Step> {
    vec![Step::Send(stream_of(&[ROLE, WORD, WORD, FINISH, "[DONE]"]))]
}

/// Starts a backend that answers each request only when the test releases it.
async fn held() -> ScriptedBackend {
    ScriptedBackend::start(|_| [vec![Step::Wait], answer()].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn client_and_gateway_count_the_same() {
    let fleet = Fleet::start_with(
        2,
        Setup {
            injects_usage: true,
            ..Setup::default()
        },
    )
    .await;
    let gateway = fleet.gateway.addr;
    let admin = fleet.gateway.admin;
    let page = file("page.html");
    let report = report(&format!(
        "http://{gateway} --admin http://{admin} --rate 200 --requests 30 --prompt-tokens 16-64 \
         --output-tokens 2-8 --html {}",
        page.display()
    ))
    .await;
    assert_eq!(
        (&report["counts"]["served"], &report["termination"]),
        (&30.into(), &"complete".into())
    );
    assert_eq!(
        report["gateway"]["is_shared"], false,
        "{}",
        report["gateway"]
    );
    for row in report["gateway"]["rows"].as_array().unwrap() {
        let [client, gateway] = ["client", "gateway"].map(|side| row[side]["count"].as_u64());
        // If the client reads late, it sees longer gaps between events than the gateway.
        let is_whole = row["quantity"] == "TTFT" || row["quantity"] == "E2E";
        assert!(
            if is_whole {
                gateway == client
            } else {
                gateway <= client
            },
            "{row}"
        );
        // The client starts its measurement earlier than the gateway and ends it later.
        let mean_of = |side: &str| row[side]["mean"].as_f64().unwrap();
        assert!(
            row["quantity"] != "TTFT" || mean_of("client") >= mean_of("gateway"),
            "{row}"
        );
    }
    let tokens = report["gateway"]["output_tokens"].as_array().unwrap();
    assert_eq!(tokens[0], tokens[1]);
    assert_eq!(tokens[0], report["counts"]["output_tokens"]);
    let intended = report["latencies"]["ttft"]["mean"].as_f64().unwrap();
    assert!(
        intended
            >= report["latencies"]["service_ttft"]["mean"]
                .as_f64()
                .unwrap()
    );
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && !page.contains("NaN"));
    for fetched in ["<script", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(fetched), "{fetched}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_leaves_partial_results() {
    let fleet = Fleet::start(1).await;
    let gateway = fleet.gateway.addr;
    let admin = fleet.gateway.admin;
    let endless = format!(
        "http://{gateway} --admin http://{admin} --rate 0.001 --requests 2 --output-tokens 2 \
         --warmup 0 --json {IGNORE_LAG}"
    );
    let child = command(&endless).stdout(Stdio::piped()).spawn().unwrap();
    fleet.gateway.record().await;
    report(&format!(
        "http://{gateway} --requests 1 --rate 1 --output-tokens 2 --warmup 0"
    ))
    .await;
    let first = interrupted(child).await;
    assert_eq!(first["termination"], "interrupted");
    assert_eq!(first["gateway"]["is_shared"], true, "{}", first["gateway"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_sends_without_answers() {
    let fake = held().await;
    let arguments = format!(
        "http://{} --api chat --rate 500 --requests 5 --warmup 0",
        fake.addr
    );
    let run = tokio::spawn(async move { report(&arguments).await });
    fake.until_received(5).await;
    (0..5).for_each(|_| fake.go());
    let report = run.await.unwrap();
    assert_eq!(
        (&report["counts"]["served"], &report["counts"]["delayed"]),
        (&5.into(), &0.into())
    );
    assert_eq!(
        report["latencies"]["tbt"]["count"], 5,
        "two outputs have one gap, in one or two reads"
    );
    assert_eq!(
        report["counts"]["uncounted"], 5,
        "no response reported its tokens"
    );
    let ids: Vec<bool> = fake
        .seen()
        .iter()
        .map(|seen| seen.head.contains("x-request-id: bench-"))
        .collect();
    assert_eq!(ids, [true; 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_loop_has_one_request_per_user() {
    let fake = held().await;
    let arguments = format!(
        "http://{} --api chat --concurrency 2 --requests 6 --warmup 0",
        fake.addr
    );
    let run = tokio::spawn(async move { report(&arguments).await });
    for sent in 2..=6 {
        fake.until_received(sent).await;
        assert_eq!(fake.seen().len(), sent);
        fake.go();
    }
    fake.go();
    assert_eq!(run.await.unwrap()["counts"]["served"], 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn delays_by_the_in_flight_limit_are_invalid() {
    let fleet = Fleet::start(1).await;
    let saved = file("waited.json");
    let arguments = format!(
        "http://{} --rate 500 --requests 10 --output-tokens 20 --max-in-flight 1 --ttft 1ms \
         --save {} {IGNORE_LAG}",
        fleet.gateway.addr,
        saved.display()
    );
    let text = text(&arguments, 1).await;
    assert!(
        text.starts_with("NOT VALID: ") && text.contains("raise --max-in-flight"),
        "{text}"
    );
    let report: Value = serde_json::from_slice(&fs::read(saved).unwrap()).unwrap();
    let counts = &report["counts"];
    assert_eq!(
        (&counts["served"], &counts["delayed"]),
        (&10.into(), &9.into())
    );
    assert_eq!(report["rates"]["goodput"], 0.0);
    // The TTFT counts from the due time. The last request waited for nine responses of 20 tokens each. At
    // least four of these were not faster than the median.
    let latency = |name: &str, quantile: &str| report["latencies"][name][quantile].as_f64();
    let last = latency("ttft", "p99").unwrap();
    let each = latency("tpot", "p50").unwrap();
    assert!(last > 4.0 * 19.0 * each, "{text}");
}

#[tokio::test]
async fn an_invalid_trace_names_the_line() {
    let line = r#"{"timestamp":0,"input_length":40,"output_length":3}"#;
    let bad = file("bad.jsonl");
    fs::write(&bad, format!("{line}\n{{\"timestamp\":1}}\n")).unwrap();
    assert_error(
        &format!("http://127.0.0.1:9 --trace {}", bad.display()),
        "line 2 of the trace is not a request: missing field",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_sent_despite_failures() {
    let fake = ScriptedBackend::answering(json("503 Service Unavailable", "{}")).await;
    let trace = file("refused.jsonl");
    let line = "{\"timestamp\":0,\"input_length\":4,\"output_length\":1}\n";
    fs::write(&trace, line.repeat(60)).unwrap();
    let arguments = format!(
        "http://{} --trace {} --jitter 0s --warmup 0 --json {IGNORE_LAG}",
        fake.addr,
        trace.display()
    );
    let report: Value = serde_json::from_slice(&bench(&arguments).await.stdout).unwrap();
    assert_eq!(report["termination"], "complete");
    assert_eq!(
        report["counts"]["failures"],
        serde_json::json!({ "status_503": 60 })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_without_inference_is_reported() {
    let fake = ScriptedBackend::answering(json("200 OK", "{}")).await;
    let url = format!("http://{}", fake.addr);
    assert_error(&url, "no_stream; it answered without an event stream").await;
    fake.set_models(&["a", "b"]);
    assert_error(&url, "several models; give --model with one of a, b").await;
    assert_error(
        &format!("{url} --model c"),
        "does not serve c; it lists a, b",
    )
    .await;
    fake.set_models(&[]);
    assert_error(&url, "lists no model; give --model").await;
    fake.refuse_models("401 Unauthorized");
    assert_error(
        &url,
        "refuses the API key, or requires one (401 Unauthorized)",
    )
    .await;
    fake.refuse_models("404 Not Found");
    assert_error(&url, "GET /v1/models with 404 Not Found: is it a gateway").await;
    assert_error(
        "http://127.0.0.1:9",
        "http://127.0.0.1:9 cannot be reached: cannot connect",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_as_admin_address_is_reported() {
    let fleet = Fleet::start(1).await;
    let gateway = fleet.gateway.addr;
    let backend = fleet.backend_addrs[0];
    assert_error(
        &format!("http://{gateway} --admin http://{backend} --requests 1"),
        "/metrics is not a page of tokenweir",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_leaves_partial_results() {
    let served = AtomicUsize::new(0);
    let fake =
        ScriptedBackend::start(
            move |_: &Seen| match served.fetch_add(1, Ordering::SeqCst) {
                0..10 => answer(),
                _ => vec![Step::Close],
            },
        )
        .await;
    let arguments = format!(
        "http://{} --api chat --concurrency 1 --duration 1h --warmup 0 {IGNORE_LAG}",
        fake.addr
    );
    let text = text(&arguments, 1).await;
    assert!(
        text.starts_with("GAVE UP after ") && text.contains("(50 connection_reset)"),
        "{text}"
    );
    assert!(text.contains("served 10, failed 50"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn api_keys_from_files_or_variables_stay_hidden() {
    let fake = ScriptedBackend::answering(json("401 Unauthorized", "{}")).await;
    let secret = file("key");
    fs::write(&secret, "sk-benched\n").unwrap();
    let url = format!("http://{} --model tiny", fake.addr);
    let from_file = command(&format!("{url} --api-key-file {}", secret.display()));
    let mut from_variable = command(&format!("{url} --api-key-env MY_KEY"));
    from_variable.env("MY_KEY", "sk-benched");
    let mut from_default_variable = command(&url);
    from_default_variable.env("OPENAI_API_KEY", "sk-benched");
    for command in [from_file, from_variable, from_default_variable] {
        let output = program::run(command).await;
        assert!(
            fake.take_received()
                .pop()
                .unwrap()
                .head
                .contains("Bearer sk-benched")
        );
        let shown = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(
            !shown.contains("sk-benched") && shown.contains("status_401"),
            "{shown}"
        );
    }
    assert_error(&url, "status_401").await;
    assert!(
        !fake.take_received().pop().unwrap().head.contains("Bearer"),
        "no key is set"
    );
    assert_error(
        &format!("{url} --api-key-env NONE"),
        "the environment variable NONE is not set",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_slower_than_the_baseline_fails() {
    let fleet = Fleet::start(1).await;
    let before = file("before.json");
    let after = file("after.json");
    let mut saved = report(&format!(
        "http://{} --rate 100 --requests 40 --prompt-tokens 16 --output-tokens 4 --save {}",
        fleet.gateway.addr,
        before.display()
    ))
    .await;
    let compare = format!("--compare {} {}", before.display(), before.display());
    text(&compare, 0).await;
    for (file, ttft) in [(&before, 0.1), (&after, 0.3)] {
        for (number, sample) in saved["samples"]["requests"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .enumerate()
        {
            sample["ttft"] = (ttft + number as f64 / 1e4).into();
        }
        saved["latencies"]["ttft"]["p50"] = (ttft + 0.002).into();
        fs::write(file, saved.to_string()).unwrap();
    }
    let line = format!(
        "--compare {} {} --regression-threshold 50%",
        before.display(),
        after.display()
    );
    let text = text(&line, 1).await;
    assert!(text.contains("regressions: TTFT p50"), "{text}");
    fs::write(&after, "{}").unwrap();
    assert_error(&line, "is no report of this version of bench").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_baseline_of_another_load_fails_early() {
    let fleet = Fleet::start(1).await;
    let before = file("load-a.json");
    let after = file("load-b.json");
    let url = format!("http://{}", fleet.gateway.addr);
    for (saved, rate) in [(&before, 100), (&after, 200)] {
        report(&format!(
            "{url} --rate {rate} --requests 5 --output-tokens 2 --save {}",
            saved.display()
        ))
        .await;
    }
    let text = text(
        &format!("--compare {} {}", before.display(), after.display()),
        2,
    )
    .await;
    assert!(
        text.contains("NOT COMPARABLE") && !text.contains("regressions"),
        "{text}"
    );
    assert!(
        text.lines()
            .all(|line| line.len() <= 80 || line.starts_with("differs")),
        "{text}"
    );
    let output = bench(&format!(
        "{url} --duration 1h --baseline {}",
        before.display()
    ))
    .await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("the baseline has another load: "),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unwritable_report_fails_before_the_run() {
    for flag in ["--save", "--html"] {
        let line = format!("http://127.0.0.1:9 --duration 1h {flag} /nonexistent/report");
        assert_error(&line, "/nonexistent/report cannot be written").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_report_fits_80_columns() {
    let fleet = Fleet::start(1).await;
    let gateway = fleet.gateway.addr;
    let admin = fleet.gateway.admin;
    let arguments = format!(
        "http://{gateway} --admin http://{admin} --rate 100 --requests 5 --output-tokens 2 \
         {IGNORE_LAG}"
    );
    let text = String::from_utf8(bench(&arguments).await.stdout).unwrap();
    assert!(text.starts_with("custom load against"), "{text}");
    assert!(text.contains("until the last request was sent"), "{text}");
    let mut table = text.lines().filter(|line| line.contains("   "));
    assert!(table.all(|line| line.chars().count() <= 80), "{text}");
}

#[tokio::test]
async fn the_bench_rejects_contradicting_flags() {
    for arguments in [
        "",
        "http://a:1 --concurrency 3 --rate 2",
        "http://a:1 --scenario heavy",
    ] {
        let output = bench(arguments).await;
        assert!(
            output
                .status
                .code()
                .is_some_and(|code| code != 0 && code != 1),
            "{arguments}"
        );
    }
}

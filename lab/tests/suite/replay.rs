//! `tokenweir-lab replay` as a program, in virtual and in real time.

use crate::support::scripted_backend::{ScriptedBackend, json};
use crate::support::simulated_fleet::Fleet;
use crate::support::test_gateway::Setup;
use serde_json::Value;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the program with these arguments and no environment variables.
async fn tokenweir(arguments: Vec<String>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir-lab"));
    command.args(arguments).env_clear();
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// The report on a trace.
async fn replay(trace: &Path, arguments: &str) -> Value {
    let mut all = vec!["replay".to_owned(), trace.display().to_string(), "--json".to_owned()];
    all.extend(arguments.split(' ').map(str::to_owned));
    let output = tokenweir(all).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn file(name: &str, lines: &[String]) -> PathBuf {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("replay-{name}.jsonl"));
    fs::write(&file, lines.join("\n")).unwrap();
    file
}

fn line(at: u64, input: u32, output: u32, ids: &[u64], more: &str) -> String {
    format!(
        "{{\"timestamp\":{at},\"input_length\":{input},\"output_length\":{output},\
         \"hash_ids\":{ids:?}{more}}}"
    )
}

/// Twenty requests of 1,040 tokens that share their first 1,024 tokens. Every fourth client
/// disconnects after 3 tokens.
fn trace(name: &str) -> PathBuf {
    let lines: Vec<String> = (0..20)
        .map(|number| {
            let leaves = if number % 4 == 3 { ",\"left_after\":3" } else { "" };
            line(number * 100, 1_040, 8, &[1, 2], leaves)
        })
        .collect();
    file(name, &lines)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_number_of_gateways_is_simulated_with_each_view_of_the_caches() {
    let arguments = "--policy kv_aware --seeds 1 --backends 2 --gateways 1,2 \
                     --cache-view exact,exchange --exchange-delay 1s --exchange-loss 0.5";
    let report = replay(&trace("views"), arguments).await;
    let group = |outcome: &Value| {
        let text = |key: &str| outcome[key].to_string().replace('"', "");
        format!("{} {} {}", text("policy"), text("gateways"), text("cache_view"))
    };
    let groups: Vec<String> = report["outcomes"].as_array().unwrap().iter().map(group).collect();
    let expected =
        ["1 exact", "1 exchange", "2 exact", "2 exchange"].map(|group| format!("kv_aware {group}"));
    assert_eq!(groups, expected);
    let wrong = ["--exchange-loss 1.5", "--cache-view oracle", "--gateways 0", "--workload chess"];
    for flags in wrong {
        let arguments = format!("replay {} {flags}", trace("wrong").display());
        let output = tokenweir(arguments.split(' ').map(str::to_owned).collect()).await;
        assert_eq!(output.status.code(), Some(2), "{flags}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_replayed_in_real_time_as_recorded() {
    let fleet = Fleet::start_with(1, Setup { injects_usage: true, ..Setup::default() }).await;
    let url = format!("http://{}", fleet.gateway.addr);
    let report = replay(&trace("real"), &format!("--real {url} --speed 4")).await;
    assert_eq!((&report["requests"], &report["served"]), (&20.into(), &20.into()));
    assert_eq!((&report["failed"], &report["unfinished"]), (&0.into(), &0.into()));
    assert_eq!((&report["client_disconnects"], &report["model"]), (&5.into(), &"sim-model".into()));
    // The engine counts the same: 15 complete responses, and the tokens generated for disconnected
    // clients.
    wait_until!(fleet.backends[0].stats().aborts >= 5);
    let stats = fleet.backends[0].stats();
    assert_eq!((stats.requests, stats.finished, stats.aborts), (20, 15, 5));
    assert_eq!(fleet.prompt_tokens(), 20 * 1_040);
    // Disconnected clients have received no cached-token count.
    let cached_tokens = (report["cached"].as_f64().unwrap() * 20.0 * 1_040.0).round() as u64;
    assert!(
        cached_tokens > 0 && cached_tokens.is_multiple_of(16),
        "{cached_tokens}: whole blocks of the engine"
    );
    assert!(
        (cached_tokens..=cached_tokens + 5 * 1_024).contains(&stats.prefix_hits),
        "{cached_tokens}: {stats:?}"
    );
    assert!(report["seconds"].as_f64().unwrap() >= 1.9 / 4.0, "{report}");
    assert!(
        report["ttft_p50"].as_f64().unwrap() > 0.0 && report["tpot_p50"].as_f64().unwrap() > 0.0
    );
    for _ in 0..20 {
        fleet.gateway.record().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_limit_in_flight_wait_and_latency_counts_from_the_due_time() {
    let fleet = Fleet::start_with(1, Setup::default()).await;
    let lines: Vec<String> = (0..4).map(|number| line(number, 16, 20, &[], "")).collect();
    let url = format!("http://{}", fleet.backend_addrs[0]);
    let arguments = format!("--real {url} --concurrency 1 --ttft 1ms --jitter 0s");
    let report = replay(&file("places", &lines), &arguments).await;
    assert_eq!((&report["served"], &report["delayed"]), (&4.into(), &3.into()));
    assert_eq!(report["goodput"], 0.0);
    // The last request waited for three responses of 20 tokens. At least one of them was not faster
    // than the median of all four.
    let (last, each) = (report["ttft_p99"].as_f64().unwrap(), report["tpot_p50"].as_f64().unwrap());
    assert!(last > 19.0 * each, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_reported_by_kind() {
    let fleet = Fleet::start(1).await;
    let lines = [line(0, 16, 4, &[], ""), line(1, 50_000, 4, &[], ""), line(2, 60_000, 4, &[], "")];
    let url = format!("http://{}", fleet.backend_addrs[0]);
    let report = replay(&file("kinds", &lines), &format!("--real {url}")).await;
    assert_eq!(
        (&report["served"], &report["failures"]),
        (&1.into(), &serde_json::json!({ "status_400": 2 }))
    );
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    let arguments = ["replay", "--json", "--model", "m", "--real", &format!("http://{nobody}")];
    let mut arguments: Vec<String> = arguments.map(str::to_owned).to_vec();
    arguments.push(file("nobody", &lines).display().to_string());
    let output = tokenweir(arguments).await;
    assert!(!output.status.success(), "no request was served");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["failures"], serde_json::json!({ "connect_error": 3 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_api_key_variable_is_used_and_never_shown() {
    let fake = ScriptedBackend::answering(json("401 Unauthorized", "{}")).await;
    let url = format!("http://{}", fake.addr);
    for key in [Some("sk-replayed"), None] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir-lab"));
        command.args(["replay", "--json", "--model", "m", "--real", &url]).env_clear();
        command
            .arg(file("key", &[line(0, 16, 4, &[], "")]))
            .envs(key.map(|key| ("OPENAI_API_KEY", key)));
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let seen = fake.seen().pop().unwrap();
        assert_eq!(seen.head.contains("Bearer sk-replayed"), key.is_some(), "{}", seen.head);
        let shown = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8(shown).unwrap().contains("sk-replayed"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_replay_with_partial_results() {
    let fleet = Fleet::start(1).await;
    // The second request is due a day later.
    let lines = [line(0, 16, 4, &[], ""), line(86_400_000, 16, 4, &[], "")];
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokenweir-lab"));
    let url = format!("http://{}", fleet.gateway.addr);
    command.arg("replay").arg(file("signal", &lines)).args(["--json", "--real", &url]).env_clear();
    let child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    fleet.gateway.record().await;
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ended = report["served"].as_u64().unwrap() + report["failed"].as_u64().unwrap();
    assert_eq!(ended + report["unfinished"].as_u64().unwrap(), 2, "{report}");
    assert!(report["unfinished"].as_u64().unwrap() >= 1, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_is_a_trace_in_virtual_and_in_real_time() {
    let captured = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("replay-captured.jsonl");
    let _ = fs::remove_file(&captured);
    let setup = Setup {
        captured: 1.0,
        capture: Some(captured.clone()),
        injects_usage: true,
        ..Setup::default()
    };
    let fleet = Fleet::start_with(2, setup).await;
    let url = format!("http://{}", fleet.gateway.addr);
    replay(&trace("original"), &format!("--real {url} --speed 4")).await;
    for _ in 0..20 {
        fleet.gateway.record().await;
    }
    fleet.gateway.captured(20).await;
    let virtually = replay(&captured, "--policy kv_aware,round_robin --seeds 1 --backends 2").await;
    assert_eq!(virtually["requests"], 20);
    assert_eq!(virtually["outcomes"].as_array().unwrap().len(), 2);
    let before = fleet.prompt_tokens();
    let report = replay(&captured, &format!("--real {url} --speed 4 --salt 1")).await;
    assert_eq!((&report["served"], &report["client_disconnects"]), (&20.into(), &5.into()));
    // Disconnected clients got no token count, so it is estimated. A JSON-escaped quote counts as
    // one byte of text.
    assert_eq!(
        fleet.prompt_tokens() - before,
        20 * 1_040 + 5,
        "the token counts of the capture are replayed"
    );
}

#[tokio::test]
async fn flags_for_virtual_time_are_rejected_in_real_time() {
    let arguments = ["replay", "trace.jsonl", "--real", "http://a:1", "--policy", "p2c"];
    let output = tokenweir(arguments.map(str::to_owned).to_vec()).await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("cannot be used with"), "{error}");
}

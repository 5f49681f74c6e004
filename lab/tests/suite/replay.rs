//! Tests of the commands `tokenweir-lab replay` and `tokenweir-lab bench --trace`, run as programs.

use crate::program;
use crate::support::simulated_fleet::Fleet;
use crate::support::test_gateway::Setup;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Simulates this trace with `tokenweir-lab replay`. Returns its report.
async fn replay(trace: &Path, arguments: &str) -> Value {
    program::report(&format!("replay {} --json {arguments}", trace.display())).await
}

/// Sends this trace to a server with `tokenweir-lab bench`. Returns its report.
async fn send(trace: &Path, arguments: &str) -> Value {
    // A busy machine delays the load generator, so the limit of its delay is raised to an hour.
    let flags = "--warmup 0 --max-lag 1h --json";
    program::report(&format!(
        "bench --trace {} {flags} {arguments}",
        trace.display()
    ))
    .await
}

fn file(name: &str, lines: &[String]) -> PathBuf {
    let file = program::file(&format!("replay-{name}.jsonl"));
    fs::write(&file, lines.join("\n")).unwrap();
    file
}

fn line(at: u64, input: u32, output: u32, ids: &[u64], more: &str) -> String {
    format!(
        "{{\"timestamp\":{at},\"input_length\":{input},\"output_length\":{output},\
         \"hash_ids\":{ids:?}{more}}}"
    )
}

/// Writes a trace of twenty requests of 1,040 tokens that share their first 1,024 tokens. Every fourth client
/// disconnects after 3 tokens. Returns the path of the trace.
fn trace(name: &str) -> PathBuf {
    let lines: Vec<String> = (0..20)
        .map(|number| {
            let leaves = if number % 4 == 3 {
                ",\"left_after\":3"
            } else {
                ""
            };
            line(number * 100, 1_040, 8, &[1, 2], leaves)
        })
        .collect();
    file(name, &lines)
}

/// Returns the number of prompt tokens that all simulated engines together have counted so far.
fn prompt_tokens(fleet: &Fleet) -> u64 {
    fleet.sum(|load| load.prompt_tokens) as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn each_gateway_count_meets_each_cache_view() {
    let arguments = "--policy kv_aware --seeds 1 --backends 2 --gateways 1,2 \
                     --cache-view exact,exchange --exchange-delay 1s --exchange-loss 0.5";
    let report = replay(&trace("views"), arguments).await;
    let group = |outcome: &Value| {
        let text = |key: &str| outcome[key].to_string().replace('"', "");
        format!(
            "{} {} {}",
            text("policy"),
            text("gateways"),
            text("cache_view")
        )
    };
    let groups: Vec<String> = report["outcomes"]
        .as_array()
        .unwrap()
        .iter()
        .map(group)
        .collect();
    let expected =
        ["1 exact", "1 exchange", "2 exact", "2 exchange"].map(|group| format!("kv_aware {group}"));
    assert_eq!(groups, expected);
    let wrong = [
        "--exchange-loss 1.5",
        "--cache-view oracle",
        "--gateways 0",
        "--workload chess",
    ];
    for flags in wrong {
        let arguments = format!("replay {} {flags}", trace("wrong").display());
        let output = program::run(program::command(&arguments)).await;
        assert_eq!(output.status.code(), Some(2), "{flags}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_is_sent_as_recorded() {
    let fleet = Fleet::start_with(
        1,
        Setup {
            injects_usage: true,
            ..Setup::default()
        },
    )
    .await;
    let url = format!("http://{}", fleet.gateway.addr);
    let report = send(&trace("real"), &format!("{url} --speed 4")).await;
    let counts = &report["counts"];
    assert_eq!(
        (&counts["served"], &counts["client_disconnects"]),
        (&20.into(), &5.into())
    );
    assert_eq!(
        (&counts["failed"], &counts["unfinished"]),
        (&0.into(), &0.into())
    );
    assert_eq!(counts["input_tokens"], 20 * 1_040);
    assert!(counts["output_tokens"].as_u64().unwrap() >= 15 * 8 + 5 * 3);
    assert_eq!(report["run"]["model"], "sim-model");
    // The engine has finished 15 complete responses. It has also computed tokens for the five clients that
    // disconnected.
    wait_until!(fleet.backends[0].stats().aborts >= 5);
    let stats = fleet.backends[0].stats();
    assert_eq!((stats.requests, stats.finished, stats.aborts), (20, 15, 5));
    assert_eq!(prompt_tokens(&fleet), 20 * 1_040);
    // The clients that disconnected got no report of cached tokens, so their cached tokens are missing here.
    let cached_tokens =
        (report["rates"]["cached"].as_f64().unwrap() * 20.0 * 1_040.0).round() as u64;
    assert!(
        cached_tokens > 0 && cached_tokens.is_multiple_of(16),
        "{cached_tokens}: whole blocks of the engine"
    );
    assert!(
        (cached_tokens..=cached_tokens + 5 * 1_024).contains(&stats.load.prefix_hits),
        "{cached_tokens}: {stats:?}"
    );
    assert!(report["seconds"].as_f64().unwrap() >= 1.9 / 4.0, "{report}");
    let latencies = &report["latencies"];
    assert!(
        ["ttft", "tpot"]
            .iter()
            .all(|name| latencies[name]["p50"].as_f64().unwrap() > 0.0)
    );
    for _ in 0..20 {
        fleet.gateway.record().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_can_be_simulated_and_sent() {
    let captured = program::file("replay-captured.jsonl");
    let _ = fs::remove_file(&captured);
    let setup = Setup {
        captured: 1.0,
        capture: Some(captured.clone()),
        injects_usage: true,
        ..Setup::default()
    };
    let fleet = Fleet::start_with(2, setup).await;
    let url = format!("http://{}", fleet.gateway.addr);
    send(&trace("original"), &format!("{url} --speed 4")).await;
    for _ in 0..20 {
        fleet.gateway.record().await;
    }
    fleet.gateway.captured(20).await;
    let virtually = replay(
        &captured,
        "--policy kv_aware,round_robin --seeds 1 --backends 2",
    )
    .await;
    assert_eq!(virtually["requests"], 20);
    assert_eq!(virtually["outcomes"].as_array().unwrap().len(), 2);
    let before = prompt_tokens(&fleet);
    let counts = &send(&captured, &format!("{url} --speed 4")).await["counts"];
    assert_eq!(
        (&counts["served"], &counts["client_disconnects"]),
        (&20.into(), &5.into())
    );
    // For clients that disconnected, the gateway estimated the number of prompt tokens. In this estimate, a
    // JSON-escaped quote counts as one byte of text.
    assert_eq!(
        prompt_tokens(&fleet) - before,
        20 * 1_040 + 5,
        "the token counts of the capture are replayed"
    );
}

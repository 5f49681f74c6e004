//! Tests of the command `tokenweir-lab tune`, run as a program.

use crate::program;
use crate::support::simulated_fleet::Fleet;
use crate::support::test_gateway::Setup;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const LLAMA: &str = r#"{"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,
    "num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,
    "vocab_size":128256,"torch_dtype":"bfloat16","max_position_embeddings":131072}"#;

/// Runs `tokenweir-lab tune` for this model. Returns its report.
async fn tune(model: &Path, arguments: &str) -> Value {
    program::report(&format!("tune {} --json {arguments}", model.display())).await
}

/// Asserts that `tokenweir-lab tune` fails for this model with an error message that has these words.
async fn assert_error(model: &Path, arguments: &str, words: &str) {
    program::assert_error(&format!("tune {} {arguments}", model.display()), words).await;
}

/// Creates a directory with this text as `config.json`.
fn model(name: &str, config: &str) -> PathBuf {
    let folder = program::file(&format!("tune-{name}"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.json"), config).unwrap();
    folder
}

fn number(report: &Value, what: &str) -> u64 {
    let lines = report["lines"].as_array().unwrap();
    let line = lines.iter().find(|line| line["name"] == what).unwrap();
    line["value"].as_f64().unwrap() as u64
}

#[tokio::test]
async fn the_size_of_weight_files_is_preferred() {
    let folder = model("index", LLAMA);
    let shape = tune(&folder, "--gpu-memory 80GiB").await;
    assert_eq!(number(&shape, "weights"), 2 * 8_029_995_008);
    let index = folder.join("model.safetensors.index.json");
    fs::write(
        &index,
        r#"{"metadata":{"total_size":1000000},"weight_map":{}}"#,
    )
    .unwrap();
    let stored = tune(&folder, "--gpu-memory 80GiB").await;
    fs::remove_file(index).unwrap();
    assert_eq!(number(&stored, "weights"), 1_000_000);
}

#[tokio::test]
async fn incomplete_configs_and_small_gpus_are_reported() {
    let lacking = model("lacking", &LLAMA.replace("num_hidden_layers", "layers"));
    assert_error(
        &lacking,
        "--gpu-memory 80GiB",
        "config.json does not describe a model",
    )
    .await;
    assert_error(
        &lacking,
        "--gpu-memory 80GiB",
        "it has no num_hidden_layers",
    )
    .await;
    assert_error(
        &model("small", LLAMA),
        "--gpu-memory 1GiB",
        "of weights and one request do not fit into 8 GPUs of",
    )
    .await;
    assert_error(
        Path::new("no/such/config.json"),
        "--gpu-memory 1GiB",
        "no/such/config.json cannot be read",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_and_speeds_come_from_other_tools() {
    let folder = model("observed", LLAMA);
    let fleet = Fleet::start_with(
        1,
        Setup {
            injects_usage: true,
            ..Setup::default()
        },
    )
    .await;
    let gateway = fleet.gateway.addr;
    let admin = fleet.gateway.admin;
    let saved = folder.join("report.json");
    let by_gateway = format!("--gpu-memory 80GiB --admin http://{admin}");
    assert_error(&folder, &by_gateway, "has served nothing yet").await;
    let load = "--rate 100 --requests 10 --warmup 0 --prompt-tokens 100 --output-tokens 10";
    let flags = format!("--max-lag 1h --json --save {}", saved.display());
    program::report(&format!("bench http://{gateway} {load} {flags}")).await;
    for _ in 0..10 {
        fleet.gateway.record().await;
    }
    let by_bench = format!(
        "--gpu-memory 80GiB --price 2 --from-bench {}",
        saved.display()
    );
    let reports = [
        tune(&folder, &by_gateway).await,
        tune(&folder, &by_bench).await,
    ];
    for report in &reports {
        let tokens = report["kv_tokens"].as_f64().unwrap();
        let fit = number(report, "concurrent requests") as f64;
        // 105 tokens on average: the simulator counts 100 words of the prompt, and half of the 10 output
        // tokens.
        assert!((tokens / fit - 105.0).abs() < 1.0, "{report:#}");
    }
    assert!(reports[0]["cost"].is_null() && reports[1]["cost"].as_f64().unwrap() > 0.0);
}

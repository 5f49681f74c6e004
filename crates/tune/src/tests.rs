//! Settings for models and GPUs whose arithmetic was done by hand.

use super::model::Model;
use super::report::{Line, Report, TuneError};
use super::request::{Request, Speed, Targets, Tokens};

const LLAMA: &str = r#"{"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,
    "num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,
    "vocab_size":128256,"torch_dtype":"bfloat16","max_position_embeddings":131072}"#;

fn request() -> Request {
    Request {
        gpu_memory: 80 << 30,
        utilization: 0.9,
        tensor_parallel: None,
        weights: None,
        kv_bytes: None,
        block: 16,
        kv_memory: None,
        prompt: Tokens { mean: 1_000.0, p95: 4_000.0 },
        output: Tokens { mean: 200.0, p95: 500.0 },
        targets: Targets::default(),
        speed: Speed::default(),
        price: None,
    }
}

fn llama(request: &Request) -> Report {
    Report::of(&Model::read(LLAMA).unwrap(), request).unwrap()
}

fn value<'a>(report: &'a Report, flag: &str) -> Option<&'a str> {
    report.advice.iter().find(|advice| advice.flag == flag).map(|advice| &*advice.value)
}

fn line<'a>(report: &'a Report, what: &str) -> &'a Line {
    report.lines.iter().find(|line| line.what == what).unwrap()
}

/// A whole number of a line.
fn whole(report: &Report, what: &str) -> i64 {
    line(report, what).value.round() as i64
}

#[test]
fn a_token_of_llama_8b_takes_128_kib_and_fp8_halves_it() {
    let report = llama(&request());
    assert_eq!(whole(&report, "KV cache of a token"), 131_072);
    // 72 GiB, less 14.96 GiB of weights, 1.5 GiB and an estimate: some 440,000 tokens.
    assert!((400_000..460_000).contains(&report.kv_tokens), "{}", report.text());
    let fp8 = llama(&Request { kv_bytes: Some(1), ..request() });
    assert_eq!(whole(&fp8, "KV cache of a token"), 65_536);
    assert!(fp8.kv_tokens.abs_diff(2 * report.kv_tokens) <= 32);
    assert_eq!(value(&fp8, "--kv-cache-dtype"), Some("fp8"));
}

#[test]
fn what_remains_is_what_vllm_has_less_what_is_taken() {
    let report = llama(&request());
    let of = |what| whole(&report, what);
    let taken = of("weights") + of("activations") + of("context and graphs");
    // Each is rounded.
    assert!((of("left for the KV cache") - (of("vLLM may take") - taken)).abs() <= 2);
    assert!(report.kv_tokens.is_multiple_of(16));
}

/// A model of two layers, as vLLM 0.32 was started with it on a CPU.
const TINY: &str = r#"{"model_type":"qwen3","num_hidden_layers":2,"hidden_size":64,"head_dim":32,
    "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":2048,"dtype":"bfloat16",
    "max_position_embeddings":4096}"#;

/// A start of vLLM: what it was given, and what its log said.
struct Start {
    kv_memory: u64,
    kv_bytes: u64,
    block: u64,
    max_model_len: u64,
    blocks: u64,
    concurrency: f64,
    size: &'static str,
}

const STARTS: [Start; 4] = [
    Start {
        kv_memory: 1 << 30,
        kv_bytes: 4,
        block: 32,
        max_model_len: 2_048,
        blocks: 32_768,
        concurrency: 512.0,
        size: "1,048,576",
    },
    Start {
        kv_memory: 2 << 30,
        kv_bytes: 4,
        block: 64,
        max_model_len: 4_000,
        blocks: 32_768,
        concurrency: 520.13,
        size: "2,080,507",
    },
    Start {
        kv_memory: 3 << 30,
        kv_bytes: 2,
        block: 32,
        max_model_len: 2_000,
        blocks: 196_608,
        concurrency: 3_120.76,
        size: "6,241,523",
    },
    // With --num-gpu-blocks-override 128.
    Start {
        kv_memory: 128 << 15,
        kv_bytes: 4,
        block: 32,
        max_model_len: 2_048,
        blocks: 128,
        concurrency: 2.0,
        size: "4,096",
    },
];

#[test]
fn the_kv_cache_is_that_of_the_log_of_vllm() {
    for start in STARTS {
        let text = TINY.replace("4096", &start.max_model_len.to_string());
        let length = Tokens { mean: 100.0, p95: 200.0 };
        let asked = Request {
            kv_memory: Some(start.kv_memory),
            kv_bytes: Some(start.kv_bytes),
            block: start.block,
            prompt: length,
            output: length,
            ..request()
        };
        let report = Report::of(&Model::read(&text).unwrap(), &asked).unwrap();
        assert_eq!(report.kv_tokens, start.blocks * start.block, "{}", report.text());
        let longest = line(&report, "the longest at once");
        assert!((longest.value - start.concurrency).abs() < 0.005, "{}", report.text());
        assert!(
            longest.how.ends_with(&format!("its size is {} tokens", start.size)),
            "{longest:?}"
        );
    }
}

#[test]
fn the_longest_request_is_a_block_shorter_than_the_cache() {
    let model = Model::read(TINY).unwrap();
    let with = |blocks: u64| {
        let prompt = Tokens { mean: 100.0, p95: 100.0 };
        let kv_memory = Some(blocks * 32 * 512);
        let asked = Request { kv_memory, block: 32, prompt, output: prompt, ..request() };
        Report::of(&model, &asked).unwrap()
    };
    // With 128 blocks of 32 vLLM refuses 4,096 and starts with 4,064.
    assert_eq!(value(&with(128), "--max-model-len"), Some("4064"));
    assert_eq!(value(&with(129), "--max-model-len"), None);
}

#[test]
fn a_model_that_is_too_large_for_one_gpu_gets_more_of_them() {
    let asked = Request { gpu_memory: 24 << 30, weights: Some(60 << 30), ..request() };
    let report = llama(&asked);
    assert_eq!((report.gpus, value(&report, "--tensor-parallel-size")), (4, Some("4")));
    assert_eq!(whole(&report, "KV cache of a token"), 32_768);
    let never = Request { gpu_memory: 8 << 30, weights: Some(600 << 30), ..request() };
    let error = Report::of(&Model::read(LLAMA).unwrap(), &never).unwrap_err();
    assert!(error.to_string().contains("600.00 GiB of weights"), "{error}");
    let odd = Request { tensor_parallel: Some(3), ..request() };
    assert_eq!(Report::of(&Model::read(LLAMA).unwrap(), &odd), Err(TuneError::Heads(3, 32)));
}

#[test]
fn latent_attention_is_not_divided_among_gpus() {
    let deepseek = LLAMA.replace(
        "{\"model",
        "{\"kv_lora_rank\":512,\"qk_rope_head_dim\":64,\"n_routed_experts\":256,\"model",
    );
    let model = Model::read(&deepseek).unwrap();
    let none = Report::of(&model, &request()).unwrap_err();
    assert!(
        none.to_string().contains("experts") && none.to_string().contains("--weights"),
        "{none}"
    );
    let asked = Request { weights: Some(40 << 30), tensor_parallel: Some(4), ..request() };
    let report = Report::of(&model, &asked).unwrap();
    assert_eq!(whole(&report, "KV cache of a token"), 32 * (512 + 64) * 2);
}

#[test]
fn steps_are_between_what_both_targets_allow() {
    let speed = Speed { prefill: Some(20_000.0), step: Some(0.01), ..Speed::default() };
    let targets = Targets { ttft: Some(0.4), tbt: Some(0.05), throughput: None };
    let report = llama(&Request { targets, speed: speed.clone(), ..request() });
    // (50 − 10 ms) × 20,000 = 800, down to whole 64s; at least 4,000 × 10 ÷ (400 − 200) = 200.
    assert_eq!(whole(&report, "a step computes at most"), 800);
    assert_eq!(whole(&report, "a step computes at least"), 200);
    assert_eq!(value(&report, "--max-num-batched-tokens"), Some("768"));
    let targets = Targets { ttft: Some(0.21), tbt: Some(0.012), throughput: None };
    let report = llama(&Request { targets, speed, ..request() });
    assert!(report.warnings[0].contains("one of both will be missed"), "{:?}", report.warnings);
}

#[test]
fn targets_that_nothing_reaches_are_said_to_be() {
    let speed = Speed { prefill: Some(20_000.0), step: Some(0.01), ..Speed::default() };
    let targets = Targets { ttft: Some(0.1), tbt: Some(0.005), throughput: None };
    let report = llama(&Request { targets, speed, ..request() });
    assert_eq!(report.warnings.len(), 2, "{:?}", report.warnings);
    assert!(report.warnings.iter().all(|warning| warning.contains("out of reach")));
}

#[test]
fn cost_is_price_over_tokens_of_a_gpu() {
    let speed = Speed { output: Some(1_000.0), ..Speed::default() };
    let report = llama(&Request { speed, price: Some(3.6), ..request() });
    assert!((report.cost.unwrap() - 1.0).abs() < 1e-9);
    let without = llama(&Request { price: Some(3.6), ..request() });
    assert_eq!(without.cost, None);
    assert!(without.warnings[0].contains("--output-rate"));
}

#[test]
fn a_throughput_needs_so_many_replicas_and_says_when_the_cache_is_what_lacks() {
    let speed = Speed { output: Some(1_000.0), step: Some(0.02), ..Speed::default() };
    let targets = Targets { throughput: Some(2_500.0), ..Targets::default() };
    let report = llama(&Request { targets, speed: speed.clone(), ..request() });
    assert_eq!(whole(&report, "replicas for the target"), 3);
    assert_eq!(value(&report, "--kv-cache-dtype"), None);
    let targets = Targets { throughput: Some(50_000.0), ..Targets::default() };
    let report = llama(&Request { targets, speed, ..request() });
    assert_eq!(value(&report, "--kv-cache-dtype"), Some("fp8"));
}

//! Tests with models and GPUs for which the expected values were calculated by hand or logged by vLLM.

use super::model::ModelShape;
use super::model::tests::{LLAMA, deepseek};
use super::report::{TuneError, TuneReport, TuneReportLine};
use super::request::{EngineSpeed, TokenLengths, TuneRequest, TuneTargets};

fn request() -> TuneRequest {
    TuneRequest {
        gpu_memory: 80 << 30,
        utilization: 0.9,
        tensor_parallel: None,
        weights: None,
        kv_bytes: None,
        block: 16,
        kv_memory: None,
        prompt: TokenLengths {
            mean: 1_000.0,
            p95: 4_000.0,
        },
        output: TokenLengths {
            mean: 200.0,
            p95: 500.0,
        },
        targets: TuneTargets::default(),
        speed: EngineSpeed::default(),
        price: None,
    }
}

fn llama(request: &TuneRequest) -> TuneReport {
    TuneReport::compute(&ModelShape::read(LLAMA).unwrap(), request).unwrap()
}

fn value<'a>(report: &'a TuneReport, flag: &str) -> Option<&'a str> {
    report
        .advice
        .iter()
        .find(|advice| advice.flag == flag)
        .map(|advice| &*advice.value)
}

fn line<'a>(report: &'a TuneReport, name: &str) -> &'a TuneReportLine {
    report.lines.iter().find(|line| line.name == name).unwrap()
}

/// The value of the line with this name, rounded to an integer.
fn rounded_value(report: &TuneReport, name: &str) -> i64 {
    line(report, name).value.round() as i64
}

#[test]
fn llama_8b_takes_128_kib_per_token() {
    let report = llama(&request());
    assert_eq!(rounded_value(&report, "KV cache per token"), 131_072);
    // 72 GiB, less 14.96 GiB of weights, 1.5 GiB of fixed overhead and the estimated activations: some
    // 440,000 tokens.
    assert!((400_000..460_000).contains(&report.kv_tokens), "{report}");
    let fp8 = llama(&TuneRequest {
        kv_bytes: Some(1),
        ..request()
    });
    assert_eq!(rounded_value(&fp8, "KV cache per token"), 65_536);
    assert!(fp8.kv_tokens.abs_diff(2 * report.kv_tokens) <= 32);
    assert_eq!(value(&fp8, "--kv-cache-dtype"), Some("fp8"));
}

#[test]
fn kv_cache_memory_is_what_is_left() {
    let report = llama(&request());
    let value_of = |name| rounded_value(&report, name);
    let other_uses =
        value_of("weights") + value_of("activations") + value_of("CUDA context and graphs");
    // Each value in the report is rounded, so the sum can differ by 2.
    let expected = value_of("memory for vLLM") - other_uses;
    assert!((value_of("memory for the KV cache") - expected).abs() <= 2);
    assert!(report.kv_tokens.is_multiple_of(16));
}

/// The `config.json` of a model of two layers. vLLM 0.32 was started with this model on a CPU.
const TINY: &str = r#"{"model_type":"qwen3","num_hidden_layers":2,"hidden_size":64,"head_dim":32,
    "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":2048,"dtype":"bfloat16",
    "max_position_embeddings":4096}"#;

/// Each row is one start of vLLM: its settings, and then the values that it logged (number of GPU blocks,
/// `Maximum concurrency`, and size of the KV cache in tokens).
#[test]
fn the_kv_cache_size_equals_vllms() {
    for (kv_memory, kv_bytes, block, max_model_len, blocks, concurrency, size) in [
        (1 << 30, 4, 32, 2_048, 32_768, 512.0, "1,048,576"),
        (2 << 30, 4, 64, 4_000, 32_768, 520.13, "2,080,507"),
        (3 << 30, 2, 32, 2_000, 196_608, 3_120.76, "6,241,523"),
        // vLLM was started with --num-gpu-blocks-override 128.
        (128 << 15, 4, 32, 2_048, 128, 2.0, "4,096"),
    ] {
        let text = TINY.replace("4096", &max_model_len.to_string());
        let length = TokenLengths {
            mean: 100.0,
            p95: 200.0,
        };
        let inputs = TuneRequest {
            kv_memory: Some(kv_memory),
            kv_bytes: Some(kv_bytes),
            block,
            prompt: length,
            output: length,
            ..request()
        };
        let report = TuneReport::compute(&ModelShape::read(&text).unwrap(), &inputs).unwrap();
        assert_eq!(report.kv_tokens, blocks * block, "{report}");
        let longest = line(&report, "longest requests at once");
        assert!((longest.value - concurrency).abs() < 0.005, "{report}");
        assert!(
            longest
                .formula
                .ends_with(&format!("a size of {size} tokens")),
            "{longest:?}"
        );
    }
}

#[test]
fn the_longest_request_is_a_block_shorter() {
    let model = ModelShape::read(TINY).unwrap();
    let report_with = |blocks: u64| {
        let prompt = TokenLengths {
            mean: 100.0,
            p95: 100.0,
        };
        let kv_memory = Some(blocks * 32 * 512);
        let inputs = TuneRequest {
            kv_memory,
            block: 32,
            prompt,
            output: prompt,
            ..request()
        };
        TuneReport::compute(&model, &inputs).unwrap()
    };
    // With 128 blocks of 32 tokens, vLLM refuses a length of 4,096 and starts with 4,064.
    assert_eq!(value(&report_with(128), "--max-model-len"), Some("4064"));
    assert_eq!(value(&report_with(129), "--max-model-len"), None);
}

#[test]
fn too_large_a_model_gets_more_gpus() {
    let inputs = TuneRequest {
        gpu_memory: 24 << 30,
        weights: Some(60 << 30),
        ..request()
    };
    let report = llama(&inputs);
    assert_eq!(
        (report.gpus, value(&report, "--tensor-parallel-size")),
        (4, Some("4"))
    );
    assert_eq!(rounded_value(&report, "KV cache per token"), 32_768);
    let too_large = TuneRequest {
        gpu_memory: 8 << 30,
        weights: Some(600 << 30),
        ..request()
    };
    let error = TuneReport::compute(&ModelShape::read(LLAMA).unwrap(), &too_large).unwrap_err();
    assert!(
        error.to_string().contains("600.00 GiB of weights"),
        "{error}"
    );
    let invalid = TuneRequest {
        tensor_parallel: Some(3),
        ..request()
    };
    assert_eq!(
        TuneReport::compute(&ModelShape::read(LLAMA).unwrap(), &invalid),
        Err(TuneError::Heads(3, 32))
    );
}

#[test]
fn latent_attention_is_not_divided_among_gpus() {
    let model = ModelShape::read(&deepseek()).unwrap();
    let error = TuneReport::compute(&model, &request()).unwrap_err();
    assert!(
        error.to_string().contains("experts") && error.to_string().contains("--weights"),
        "{error}"
    );
    let inputs = TuneRequest {
        weights: Some(40 << 30),
        tensor_parallel: Some(4),
        ..request()
    };
    let report = TuneReport::compute(&model, &inputs).unwrap();
    assert_eq!(
        rounded_value(&report, "KV cache per token"),
        32 * (512 + 64) * 2
    );
}

#[test]
fn tokens_per_step_are_between_both_bounds() {
    let speed = EngineSpeed {
        prefill: Some(20_000.0),
        step: Some(0.01),
        ..EngineSpeed::default()
    };
    let targets = TuneTargets {
        ttft: Some(0.4),
        tbt: Some(0.05),
        throughput: None,
    };
    let report = llama(&TuneRequest {
        targets,
        speed: speed.clone(),
        ..request()
    });
    // Upper bound: (50 − 10 ms) × 20,000 tokens per second = 800, rounded down to a multiple of 64. Lower
    // bound: 4,000 × 10 ÷ (400 − 200) = 200.
    assert_eq!(rounded_value(&report, "max tokens per step"), 800);
    assert_eq!(rounded_value(&report, "min tokens per step"), 200);
    assert_eq!(value(&report, "--max-num-batched-tokens"), Some("768"));
    let targets = TuneTargets {
        ttft: Some(0.21),
        tbt: Some(0.012),
        throughput: None,
    };
    let report = llama(&TuneRequest {
        targets,
        speed,
        ..request()
    });
    assert!(
        report.warnings[0].contains("one of both is missed"),
        "{:?}",
        report.warnings
    );
}

#[test]
fn unreachable_targets_are_warned_about() {
    let speed = EngineSpeed {
        prefill: Some(20_000.0),
        step: Some(0.01),
        ..EngineSpeed::default()
    };
    let targets = TuneTargets {
        ttft: Some(0.1),
        tbt: Some(0.005),
        throughput: None,
    };
    let report = llama(&TuneRequest {
        targets,
        speed,
        ..request()
    });
    assert_eq!(report.warnings.len(), 2, "{:?}", report.warnings);
    assert!(
        report
            .warnings
            .iter()
            .all(|warning| warning.contains("out of reach"))
    );
}

#[test]
fn the_cost_is_price_by_output() {
    let speed = EngineSpeed {
        output: Some(1_000.0),
        ..EngineSpeed::default()
    };
    let report = llama(&TuneRequest {
        speed,
        price: Some(3.6),
        ..request()
    });
    assert!((report.cost.unwrap() - 1.0).abs() < 1e-9);
    let without = llama(&TuneRequest {
        price: Some(3.6),
        ..request()
    });
    assert_eq!(without.cost, None);
    assert!(without.warnings[0].contains("--output-rate"));
}

#[test]
fn fp8_is_suggested_if_the_cache_limits() {
    let speed = EngineSpeed {
        output: Some(1_000.0),
        step: Some(0.02),
        ..EngineSpeed::default()
    };
    let targets = TuneTargets {
        throughput: Some(2_500.0),
        ..TuneTargets::default()
    };
    let report = llama(&TuneRequest {
        targets,
        speed: speed.clone(),
        ..request()
    });
    assert_eq!(rounded_value(&report, "backends for the target"), 3);
    assert_eq!(value(&report, "--kv-cache-dtype"), None);
    let targets = TuneTargets {
        throughput: Some(50_000.0),
        ..TuneTargets::default()
    };
    let report = llama(&TuneRequest {
        targets,
        speed,
        ..request()
    });
    assert_eq!(value(&report, "--kv-cache-dtype"), Some("fp8"));
}

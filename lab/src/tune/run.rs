//! Collects the inputs of `tokenweir-lab tune` (the model, request lengths, speeds) and prints the
//! resulting settings.

use super::args::{KvCacheDtype, TuneArgs};
use crate::admin_client::admin_client;
use crate::output::print_json;
use crate::replay::requests::{self, UnreadableTrace};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokenweir::commands::{block_on, report_error};
use tokenweir::config::SecretError;
use tokenweir_bench::report::BenchReport;
use tokenweir_bench::sender::TargetError;
use tokenweir_tune::lengths::{self, RequestLengths};
use tokenweir_tune::model::{ModelShape, ModelShapeError};
use tokenweir_tune::report::{TuneError, TuneReport};
use tokenweir_tune::request::{EngineSpeed, TokenLengths, TuneRequest, TuneTargets};

/// Why `tokenweir-lab tune` has no result.
#[derive(Debug, thiserror::Error)]
enum TuneCommandError {
    #[error("{0} cannot be read")]
    Read(PathBuf, #[source] io::Error),
    #[error("{0} does not describe a model")]
    Model(PathBuf, #[source] ModelShapeError),
    #[error("{0} is not a report of this version of tokenweir-lab bench")]
    BenchReport(PathBuf, #[source] serde_json::Error),
    #[error(
        "the bench report {0} has no served request, so no engine speed can be computed from it"
    )]
    NothingServed(PathBuf),
    #[error(transparent)]
    Trace(#[from] UnreadableTrace),
    #[error("the admin token cannot be read")]
    Token(#[source] SecretError),
    #[error(transparent)]
    Request(#[from] TargetError),
    #[error(
        "the gateway has served nothing yet, or this is no gateway: give --prompt-tokens and \
         --output-tokens"
    )]
    GatewayIdle,
    #[error(transparent)]
    Tune(#[from] TuneError),
}

/// Prompt lengths if no flag, trace, gateway or bench report gives them.
const DEFAULT_PROMPT_TOKENS: TokenLengths = TokenLengths {
    mean: 1_000.0,
    p95: 4_000.0,
};
/// Output lengths if no flag, trace, gateway or bench report gives them.
const DEFAULT_OUTPUT_TOKENS: TokenLengths = TokenLengths {
    mean: 200.0,
    p95: 500.0,
};

pub(crate) fn run(tune: TuneArgs) -> ExitCode {
    block_on(async move {
        match build_report(&tune).await {
            Ok(report) => print_report(&tune, &report),
            Err(error) => report_error(&error),
        }
    })
}

#[expect(
    clippy::print_stdout,
    reason = "standard output is the result of the command"
)]
fn print_report(tune: &TuneArgs, report: &TuneReport) -> ExitCode {
    if tune.json {
        return print_json(report);
    }
    print!("{report}");
    ExitCode::SUCCESS
}

async fn build_report(tune: &TuneArgs) -> Result<TuneReport, TuneCommandError> {
    let file = if tune.model.is_dir() {
        tune.model.join("config.json")
    } else {
        tune.model.clone()
    };
    let text =
        fs::read_to_string(&file).map_err(|error| TuneCommandError::Read(file.clone(), error))?;
    let model =
        ModelShape::read(&text).map_err(|error| TuneCommandError::Model(file.clone(), error))?;
    let bench = tune
        .speed
        .from_bench
        .as_deref()
        .map(read_bench_report)
        .transpose()?;
    let mut speed = resolve_speed(tune, bench.as_ref());
    let RequestLengths { prompt, output } =
        resolve_lengths(tune, bench.as_ref(), &mut speed).await?;
    let gpu = &tune.gpu;
    let targets = &tune.targets;
    let request = TuneRequest {
        gpu_memory: gpu.gpu_memory as u64,
        utilization: gpu.gpu_memory_utilization,
        tensor_parallel: gpu.tensor_parallel,
        weights: gpu
            .weights
            .map(|bytes| bytes as u64)
            .or_else(|| stored_weights_bytes(file.parent()?)),
        kv_bytes: match gpu.kv_cache_dtype {
            KvCacheDtype::Auto => None,
            KvCacheDtype::Fp8 => Some(1),
            KvCacheDtype::Bfloat16 => Some(2),
            KvCacheDtype::Float32 => Some(4),
        },
        block: gpu.block_size,
        kv_memory: gpu.kv_memory.map(|bytes| bytes as u64),
        prompt: targets.prompt_tokens.unwrap_or(prompt),
        output: targets.output_tokens.unwrap_or(output),
        targets: TuneTargets {
            ttft: targets.ttft.map(|ttft| ttft.as_secs_f64()),
            tbt: targets.tbt.map(|tbt| tbt.as_secs_f64()),
            throughput: targets.throughput,
        },
        speed,
        price: gpu.price,
    };
    Ok(TuneReport::compute(&model, &request)?)
}

/// Size in bytes of the weights in the folder of a `config.json`: from the index of the weights, or without
/// an index from the sizes of the `.safetensors` files. `None`: there are no such files.
fn stored_weights_bytes(folder: &Path) -> Option<u64> {
    let index = fs::read(folder.join("model.safetensors.index.json")).ok();
    let index: Option<Value> = index.and_then(|index| serde_json::from_slice(&index).ok());
    let total = index.and_then(|index| index["metadata"]["total_size"].as_u64());
    let sum_file_sizes = || {
        let files = fs::read_dir(folder).ok()?.flatten();
        let is_weights = |file: &fs::DirEntry| {
            file.path()
                .extension()
                .is_some_and(|extension| extension == "safetensors")
        };
        let sizes = files
            .filter(is_weights)
            .filter_map(|file| Some(file.metadata().ok()?.len()));
        Some(sizes.sum::<u64>())
    };
    total.or_else(sum_file_sizes).filter(|bytes| *bytes > 0)
}

fn read_bench_report(file: &Path) -> Result<BenchReport, TuneCommandError> {
    let text = fs::read(file).map_err(|error| TuneCommandError::Read(file.to_owned(), error))?;
    let bench: BenchReport = serde_json::from_slice(&text)
        .map_err(|error| TuneCommandError::BenchReport(file.to_owned(), error))?;
    if bench.counts.served == 0 {
        return Err(TuneCommandError::NothingServed(file.to_owned()));
    }
    Ok(bench)
}

/// The speed of the engine, from the flags. The bench report gives those values that no flag gives.
fn resolve_speed(tune: &TuneArgs, bench: Option<&BenchReport>) -> EngineSpeed {
    let flags = &tune.speed;
    let mut speed = EngineSpeed {
        prefill: flags.prefill_rate,
        step: flags.step.map(|step| step.as_secs_f64()),
        output: flags.output_rate,
        sources: Vec::new(),
    };
    let Some(bench) = bench else { return speed };
    let problems = bench.generator.problems.iter();
    let warning = |problem: &String| format!("warning of the bench report: {problem}");
    speed.sources.extend(problems.map(warning));
    let step = bench.latencies.tpot.p50;
    if step > 0.0 && speed.step.is_none() {
        speed.step = Some(step);
        speed.sources.push(
            "duration of a step without prompts: the median TPOT of the bench report, whose steps \
             include some prompts"
                .into(),
        );
    }
    let prefill_seconds = bench.latencies.service_ttft.p50 - speed.step.unwrap_or(0.0);
    if prefill_seconds > 0.0 && speed.prefill.is_none() {
        speed.prefill =
            Some(bench.counts.input_tokens as f64 / bench.counts.served as f64 / prefill_seconds);
        speed.sources.push(
            "prompt tokens per second: mean prompt ÷ (median service TTFT − step) of the bench \
             report; too low if requests waited in a queue, so a report at low load is best"
                .into(),
        );
    }
    speed.output = speed.output.or(Some(bench.rates.output_tokens));
    speed
}

/// The prompt and output lengths. They come from the first of these that is given: `--trace`, `--admin`, the
/// bench report; otherwise they are the defaults. Notes about assumed lengths are added to the sources of
/// `speed`.
async fn resolve_lengths(
    tune: &TuneArgs,
    bench: Option<&BenchReport>,
    speed: &mut EngineSpeed,
) -> Result<RequestLengths, TuneCommandError> {
    // `read_trace` fails if the trace has no requests, so there are always lengths.
    if let Some(file) = &tune.targets.trace
        && let Some(lengths) = lengths::from_trace(&requests::read_trace(file)?)
    {
        return Ok(lengths);
    }
    let p95_note = "95th percentiles of lengths: assumed to be three times the mean";
    if let Some(admin) = &tune.targets.admin {
        let client = admin_client(admin).map_err(TuneCommandError::Token)?;
        speed.sources.push(p95_note.into());
        let page = client.metrics().await?;
        return lengths::from_metrics_page(&page).ok_or(TuneCommandError::GatewayIdle);
    }
    let Some(bench) = bench else {
        return Ok(RequestLengths {
            prompt: DEFAULT_PROMPT_TOKENS,
            output: DEFAULT_OUTPUT_TOKENS,
        });
    };
    let with_assumed_p95 = |tokens: u64| {
        let mean = (tokens as f64 / bench.counts.served as f64).max(1.0);
        TokenLengths {
            mean,
            p95: mean * lengths::P95_TO_MEAN_RATIO,
        }
    };
    speed.sources.push(p95_note.into());
    let counts = &bench.counts;
    Ok(RequestLengths {
        prompt: with_assumed_p95(counts.input_tokens),
        output: with_assumed_p95(counts.output_tokens),
    })
}

//! `tokenweir tune`: gathers what is known of a model, its traffic and its speed, and shows what
//! follows.

use super::args::{KvDtype, Tune};
use crate::commands::{block_on, failed, variable};
use crate::config::{Secret, SecretError};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokenweir_bench::report::Report as Bench;
use tokenweir_bench::send::{AskError, Asker};
use tokenweir_lab::trace::{self, TraceError};
use tokenweir_net::client::{Client, Limits};
use tokenweir_tune::lengths;
use tokenweir_tune::model::{Model, ModelError};
use tokenweir_tune::report::{Report, TuneError};
use tokenweir_tune::request::{Request, Speed, Targets, Tokens};

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
enum Wrong {
    #[error("{0} cannot be read")]
    Read(PathBuf, #[source] io::Error),
    #[error("{0} does not describe a model")]
    Model(PathBuf, #[source] ModelError),
    #[error("{0} is no report of this version of bench")]
    Bench(PathBuf, #[source] serde_json::Error),
    #[error("{0} served nothing, so it says nothing of speed")]
    Idle(PathBuf),
    #[error("{0}")]
    Trace(PathBuf, #[source] TraceError),
    #[error("the token of the admin port cannot be had")]
    Token(#[source] SecretError),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(
        "the gateway has served nothing yet, or is none: give --prompt-tokens and --output-tokens"
    )]
    Unserved,
    #[error(transparent)]
    Tune(#[from] TuneError),
}

/// Lengths if nobody says.
const PROMPT: Tokens = Tokens { mean: 1_000.0, p95: 4_000.0 };
const OUTPUT: Tokens = Tokens { mean: 200.0, p95: 500.0 };
/// The token of an admin port.
const ADMIN_TOKEN: &str = "TOKENWEIR_ADMIN_TOKEN";

pub(crate) fn run(tune: Tune) -> ExitCode {
    block_on(async move {
        match report(&tune).await {
            Ok(report) => show(&tune, &report),
            Err(error) => failed(&error),
        }
    })
}

#[expect(clippy::print_stdout, reason = "it is what was asked for")]
fn show(tune: &Tune, report: &Report) -> ExitCode {
    if tune.json {
        match serde_json::to_string_pretty(report) {
            Ok(json) => println!("{json}"),
            Err(error) => return failed(&error),
        }
    } else {
        print!("{}", report.text());
    }
    ExitCode::SUCCESS
}

async fn report(tune: &Tune) -> Result<Report, Wrong> {
    let file =
        if tune.model.is_dir() { tune.model.join("config.json") } else { tune.model.clone() };
    let text = fs::read_to_string(&file).map_err(|error| Wrong::Read(file.clone(), error))?;
    let model = Model::read(&text).map_err(|error| Wrong::Model(file.clone(), error))?;
    let bench = tune.speed.from_bench.as_deref().map(bench).transpose()?;
    let mut speed = speed(tune, bench.as_ref());
    let [prompt, output] = lengths(tune, bench.as_ref(), &mut speed).await?;
    let (gpu, promise) = (&tune.gpu, &tune.promise);
    let request = Request {
        gpu_memory: gpu.gpu_memory as u64,
        utilization: gpu.gpu_memory_utilization,
        tensor_parallel: gpu.tensor_parallel,
        weights: gpu.weights.map(|bytes| bytes as u64).or_else(|| stored(file.parent()?)),
        kv_bytes: match gpu.kv_cache_dtype {
            KvDtype::Auto => None,
            KvDtype::Fp8 => Some(1),
            KvDtype::Bfloat16 => Some(2),
            KvDtype::Float32 => Some(4),
        },
        block: gpu.block_size,
        kv_memory: gpu.kv_memory.map(|bytes| bytes as u64),
        prompt: promise.prompt_tokens.unwrap_or(prompt),
        output: promise.output_tokens.unwrap_or(output),
        targets: Targets {
            ttft: promise.ttft.map(|ttft| ttft.as_secs_f64()),
            tbt: promise.tbt.map(|tbt| tbt.as_secs_f64()),
            throughput: promise.throughput,
        },
        speed,
        price: gpu.price,
    };
    Ok(Report::of(&model, &request)?)
}

/// The size of the weights beside a `config.json`: what their index says, or their files.
fn stored(folder: &Path) -> Option<u64> {
    let index = fs::read(folder.join("model.safetensors.index.json")).ok();
    let index: Option<Value> = index.and_then(|index| serde_json::from_slice(&index).ok());
    let told = index.and_then(|index| index["metadata"]["total_size"].as_u64());
    let files = || {
        let files = fs::read_dir(folder).ok()?.flatten();
        let weights =
            files.filter(|file| file.path().extension().is_some_and(|it| it == "safetensors"));
        Some(weights.filter_map(|file| Some(file.metadata().ok()?.len())).sum::<u64>())
    };
    told.or_else(files).filter(|bytes| *bytes > 0)
}

fn bench(file: &Path) -> Result<Bench, Wrong> {
    let text = fs::read(file).map_err(|error| Wrong::Read(file.to_owned(), error))?;
    let bench: Bench =
        serde_json::from_slice(&text).map_err(|error| Wrong::Bench(file.to_owned(), error))?;
    if bench.counts.served == 0 { Err(Wrong::Idle(file.to_owned())) } else { Ok(bench) }
}

/// As given, or as a report has it.
fn speed(tune: &Tune, bench: Option<&Bench>) -> Speed {
    let given = &tune.speed;
    let mut speed = Speed {
        prefill: given.prefill_rate,
        step: given.step.map(|step| step.as_secs_f64()),
        output: given.output_rate,
        sources: Vec::new(),
    };
    let Some(bench) = bench else { return speed };
    let complaints = bench.generator.complaints.iter();
    speed.sources.extend(complaints.map(|it| format!("how true the report is: it says that {it}")));
    let step = bench.latencies.tpot.p50;
    if step > 0.0 && speed.step.is_none() {
        speed.step = Some(step);
        speed.sources.push(
            "a step without prompts: taken to be the report's median TPOT, in which there are some"
                .into(),
        );
    }
    let first = bench.latencies.service_ttft.p50 - speed.step.unwrap_or(0.0);
    if first > 0.0 && speed.prefill.is_none() {
        speed.prefill = Some(bench.counts.input_tokens as f64 / bench.counts.served as f64 / first);
        speed.sources.push(
            "prompt tokens a second: taken to be the mean prompt ÷ (median service TTFT − step), \
             which is too few if requests waited; a low load tells it best"
                .into(),
        );
    }
    speed.output = speed.output.or(Some(bench.rates.output_tokens));
    speed
}

/// As observed, if somebody did.
async fn lengths(
    tune: &Tune,
    bench: Option<&Bench>,
    speed: &mut Speed,
) -> Result<[Tokens; 2], Wrong> {
    if let Some(file) = &tune.promise.trace {
        let of_trace = |error| Wrong::Trace(file.clone(), error);
        let open = File::open(file).map_err(|error| of_trace(error.into()))?;
        let jobs = trace::read(BufReader::new(open)).map_err(of_trace)?;
        return lengths::of_trace(&jobs).ok_or_else(|| of_trace(TraceError::Empty));
    }
    let guessed = "the 95th percentile of lengths: taken to be three times the mean";
    if let Some(admin) = &tune.promise.admin {
        let token = match Secret::Env(ADMIN_TOKEN.to_owned()).resolve(variable) {
            Err(SecretError::Unset(_)) => None,
            token => Some(token.map_err(Wrong::Token)?.bearer().clone()),
        };
        let asker = Asker::new(Client::new(Limits::default()), admin.clone(), token);
        speed.sources.push(guessed.into());
        return lengths::of_page(&asker.metrics().await?).ok_or(Wrong::Unserved);
    }
    let Some(bench) = bench else { return Ok([PROMPT, OUTPUT]) };
    let of = |tokens: u64| {
        let mean = (tokens as f64 / bench.counts.served as f64).max(1.0);
        Tokens { mean, p95: mean * lengths::P95_OF_MEAN }
    };
    speed.sources.push(guessed.into());
    Ok([of(bench.counts.input_tokens), of(bench.counts.output_tokens)])
}

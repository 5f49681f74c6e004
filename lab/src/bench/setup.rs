//! Prepares a benchmark: builds the load, selects the model and the key, and sends the warm-up
//! requests.

use super::args::{BenchArgs, BenchLoadArgs};
use super::driver::LoadDriver;
use crate::admin_client::admin_client;
use crate::replay::requests::{self, UnreadableTrace};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokenweir::commands::{resolve_optional_secret, variable};
use tokenweir::config::{Secret, SecretError};
use tokenweir_bench::measurement::RequestFailure;
use tokenweir_bench::plan::{self, LoadPlan};
use tokenweir_bench::report::RunDescription;
use tokenweir_bench::scenario::{ArrivalProcess, LoadScenario, ScenarioPreset};
use tokenweir_bench::sender::{BenchRequestSender, TargetClient, TargetError};
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::client::{HttpClient, HttpClientTimeouts};
use tokenweir_protocol::clock;
use tokenweir_replay::prompt_synthesis::PromptSynthesizer;
use tokenweir_replay::results::LatencyObjectives;
use tokenweir_replay::trace::TraceRequest;

/// The inputs of a benchmark run.
pub(crate) struct BenchSetup {
    pub(super) run: RunDescription,
    pub(super) driver: LoadDriver,
    /// The client for the admin listener of the gateway. `None`: `--admin` is not set.
    pub(super) admin: Option<TargetClient>,
}

/// Why a benchmark run cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error(transparent)]
    Trace(#[from] UnreadableTrace),
    #[error("the API key cannot be read")]
    Key(#[source] SecretError),
    #[error(transparent)]
    Request(#[from] TargetError),
    #[error("{0} lists no model; give --model")]
    NoModel(String),
    #[error("{0} serves several models; give --model with one of {1}")]
    SeveralModels(String, String),
    #[error("{0} does not serve {1}; it lists {2}")]
    UnknownModel(String, String, String),
    #[error("the baseline has another load: {baseline}; this run: {run}")]
    OtherLoad { baseline: String, run: String },
    #[error("a warm-up request failed with {0}{1}")]
    Warmup(String, String),
    #[error("{0}/metrics is not a page of tokenweir; --admin is the admin port of the gateway")]
    NotAGateway(String),
}

/// Duration of a run if neither a duration nor a number of requests is given.
const DEFAULT_DURATION: Duration = Duration::from_mins(1);
/// Environment variable with the API key. OpenAI's clients read the same variable.
const API_KEY_VARIABLE: &str = "OPENAI_API_KEY";
/// Combined with the salt of the run by XOR, so that the warm-up requests have other prompts than the
/// requests of the run.
const WARMUP_SALT: u64 = 0x7761_726d;

impl BenchSetup {
    /// Builds the load, selects the model and sends the warm-up requests.
    pub(super) async fn prepare(
        bench: &BenchArgs,
        target: BackendAddress,
    ) -> Result<Self, BenchError> {
        let load = &bench.load;
        let recorded = read_trace(load)?;
        let scenario = build_scenario(bench);
        let is_open = scenario.arrivals.is_open();
        let max_in_flight = match scenario.arrivals {
            ArrivalProcess::Closed { users } => users,
            _ => load.max_in_flight,
        };
        let is_bounded = load.requests.is_some() || load.trace.is_some();
        let run_duration = load.duration.or((!is_bounded).then_some(DEFAULT_DURATION));
        let until = if is_open { run_duration } else { None };
        let limits = plan::PlanLimits {
            requests: load.requests,
            until,
        };
        let plan = LoadPlan::new(scenario.clone(), recorded.clone(), limits, load.seed);
        let salt = load.salt.unwrap_or_else(default_salt);
        let sender = build_sender(bench, target).await?;
        let synthesis = |salt| {
            let first: Vec<TraceRequest> =
                plan.clone().take(1).map(|planned| planned.job).collect();
            let jobs = recorded.as_deref().unwrap_or(&first);
            PromptSynthesizer::new(jobs, load.bytes_per_token, salt)
        };
        warm_up(&sender, &plan, &synthesis(salt ^ WARMUP_SALT), load.warmup).await?;
        let admin = bench.endpoint.admin.as_ref().map(admin_client);
        let admin = admin.transpose().map_err(BenchError::Key)?;
        let run = describe_run(bench, &sender, scenario, salt);
        let driver = LoadDriver {
            synthesis: synthesis(salt),
            sender,
            plan,
            max_in_flight: max_in_flight as usize,
            run_duration,
            salt,
            // A trace is always sent to its end. It may cause an overload, in which many successive requests
            // fail.
            aborts: load.trace.is_none(),
        };
        Ok(Self { run, driver, admin })
    }
}

fn describe_run(
    bench: &BenchArgs,
    sender: &BenchRequestSender,
    scenario: LoadScenario,
    salt: u64,
) -> RunDescription {
    RunDescription {
        target: sender.asker.target().to_string(),
        model: sender.model.clone(),
        api: sender.shape.as_str().to_owned(),
        started: humantime::format_rfc3339_seconds(clock::wall_time()).to_string(),
        scenario,
        seed: bench.load.seed,
        salt,
        objectives: LatencyObjectives::new(
            bench.shown.ttft.as_secs_f64(),
            bench.shown.tpot.as_secs_f64(),
        ),
        lag_limit: bench.shown.max_lag.as_secs_f64(),
    }
}

/// The scenario of the preset or the trace. Flags override the values of the scenario.
fn build_scenario(bench: &BenchArgs) -> LoadScenario {
    let load = &bench.load;
    let preset = load.scenario.unwrap_or(ScenarioPreset::LowLoad).scenario();
    let mut scenario = match &load.trace {
        Some(_) => LoadScenario {
            name: "trace".to_owned(),
            arrivals: ArrivalProcess::Recorded { speed: load.speed },
            prompt: None,
            output: None,
        },
        None => preset,
    };
    let unchanged = scenario.clone();
    scenario.arrivals = match (load.rate, load.concurrency, scenario.arrivals) {
        (Some(rate), _, _) if load.constant_rate => ArrivalProcess::Constant { rate },
        (Some(rate), _, ArrivalProcess::Bursts { size, .. }) => {
            ArrivalProcess::Bursts { rate, size }
        }
        (Some(rate), _, _) => ArrivalProcess::Poisson { rate },
        (None, Some(users), _) => ArrivalProcess::Closed { users },
        (None, None, default) => default,
    };
    scenario.prompt = load.prompt_tokens.or(scenario.prompt);
    scenario.output = load.output_tokens.or(scenario.output);
    if !scenario.is_same_load(&unchanged) {
        let is_named = load.scenario.is_some() || load.trace.is_some();
        scenario.name = if is_named {
            format!("{} with changes", scenario.name)
        } else {
            "custom load".into()
        };
    }
    scenario
}

/// Reads the requests of `--trace`, if the flag is set. Each request gets a random delay of up to `--jitter`.
/// Without the delay, all requests whose time stamps were rounded to the same value would start together.
fn read_trace(load: &BenchLoadArgs) -> Result<Option<Arc<[TraceRequest]>>, UnreadableTrace> {
    let Some(file) = &load.trace else {
        return Ok(None);
    };
    let mut jobs = requests::read_trace(file)?;
    let jitter = requests::arrival_jitter(load.jitter, &jobs);
    let mut random = fastrand::Rng::with_seed(load.seed);
    for job in &mut jobs {
        job.at += jitter.mul_f64(random.f64());
    }
    jobs.sort_by_key(|job| job.at);
    Ok(Some(jobs.into()))
}

async fn build_sender(
    bench: &BenchArgs,
    target: BackendAddress,
) -> Result<BenchRequestSender, BenchError> {
    let endpoint = &bench.endpoint;
    let key = match (&endpoint.api_key_env, &endpoint.api_key_file) {
        (Some(name), _) => Some(Secret::Env(name.clone())),
        (None, Some(file)) => Some(Secret::File(file.clone())),
        (None, None) => None,
    };
    let key = match key {
        Some(key) => key.resolve(variable).map(|key| Some(key.into_bearer())),
        None => resolve_optional_secret(&Secret::Env(API_KEY_VARIABLE.to_owned())),
    };
    let key = key.map_err(BenchError::Key)?;
    let timeouts = HttpClientTimeouts {
        response_headers: endpoint.timeout,
        ..HttpClientTimeouts::default()
    };
    let client = TargetClient::new(HttpClient::new(timeouts), target, key);
    let model = select_model(&client, endpoint.model.as_deref()).await?;
    Ok(BenchRequestSender {
        asker: client,
        model,
        shape: endpoint.api,
        timeout: endpoint.timeout,
    })
}

async fn select_model(client: &TargetClient, wanted: Option<&str>) -> Result<String, BenchError> {
    let target = || client.target().to_string();
    let listed = match (client.models().await, wanted) {
        // A server without a model list may still serve the wanted model.
        (Err(TargetError::Status(..) | TargetError::Page(..)), Some(wanted)) => {
            return Ok(wanted.to_owned());
        }
        (listed, _) => listed?,
    };
    let model_list = || listed.join(", ");
    match (wanted, &*listed) {
        (Some(wanted), _) if listed.iter().any(|model| model == wanted) => Ok(wanted.to_owned()),
        (Some(wanted), _) => Err(BenchError::UnknownModel(
            target(),
            wanted.to_owned(),
            model_list(),
        )),
        (None, [model]) => Ok(model.clone()),
        (None, []) => Err(BenchError::NoModel(target())),
        (None, _) => Err(BenchError::SeveralModels(target(), model_list())),
    }
}

/// Sends the first `count` requests of the plan one after the other, but with other prompts than in the run.
/// Stops at the first failure and returns it.
async fn warm_up(
    sender: &BenchRequestSender,
    plan: &LoadPlan,
    synthesis: &PromptSynthesizer,
    count: u32,
) -> Result<(), BenchError> {
    for planned in plan.clone().take(count as usize) {
        let body = sender.body(
            &synthesis.prompt(&planned.job, planned.number),
            &planned.job,
        );
        let result = sender.answer(&planned.job, body, None).await;
        if let Err(RequestFailure { kind, message }) = result {
            let hint = failure_hint(&kind);
            let message = message
                .map(|message| format!(": {message}"))
                .unwrap_or_default();
            return Err(BenchError::Warmup(
                kind.into_owned(),
                format!("{message}{hint}"),
            ));
        }
    }
    Ok(())
}

/// A hint on how to correct a failure of the given kind.
fn failure_hint(kind: &str) -> &'static str {
    match kind {
        "status_401" | "status_403" => "; give a key with --api-key-env or --api-key-file",
        "status_404" | "status_405" => "; does the server have the API of --api?",
        "status_400" | "status_422" => "; do --prompt-tokens fit into the model's context length?",
        "no_stream" => "; it answered without an event stream: it is no OpenAI-compatible server",
        "truncated" => "; its stream ended without a finish reason",
        _ => "",
    }
}

/// The default salt: the current Unix time in milliseconds. So each run has another salt, and other prompts.
fn default_salt() -> u64 {
    let since_epoch = clock::wall_time()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since_epoch.as_millis() as u64
}

//! What is settled before a run: the load, the model, the key, and that the server answers as it
//! should.

use super::args::Bench;
use crate::commands::replay::run::ROUNDED_TO;
use crate::commands::variable;
use crate::config::{Secret, SecretError, SecretValue};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokenweir_bench::measure::Failure;
use tokenweir_bench::plan::{self, Plan};
use tokenweir_bench::report::Run;
use tokenweir_bench::scenario::{Arrivals, Preset, Scenario};
use tokenweir_bench::send::{AskError, Asker, Sender};
use tokenweir_core::address::Address;
use tokenweir_core::clock;
use tokenweir_lab::score::Objectives;
use tokenweir_lab::synthesis::Synthesis;
use tokenweir_lab::trace::{self, Job, TraceError};
use tokenweir_net::client::{Client, Limits};

/// All that a run needs.
pub(crate) struct Opening {
    pub(super) run: Run,
    pub(super) sender: Sender,
    pub(super) plan: Plan,
    pub(super) synthesis: Synthesis,
    pub(super) places: usize,
    pub(super) until: Option<Duration>,
    pub(super) admin: Option<Asker>,
}

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("{0}")]
    Trace(PathBuf, #[source] TraceError),
    #[error("the API key cannot be had")]
    Key(#[source] SecretError),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("{0} lists no model; give --model")]
    NoModel(String),
    #[error("{0} serves several models; give --model with one of {1}")]
    SeveralModels(String, String),
    #[error("{0} does not serve {1}; it lists {2}")]
    UnknownModel(String, String, String),
    #[error("a request before the run failed with {0}{1}")]
    Warmup(String, String),
    #[error("{0}/metrics is not a page of tokenweir; --admin is the admin port of the gateway")]
    NoGateway(String),
}

/// How long requests are sent if nobody says.
const USUAL: Duration = Duration::from_mins(1);
/// The key of OpenAI's clients.
const USUAL_KEY: &str = "OPENAI_API_KEY";
/// The token of an admin port.
const ADMIN_TOKEN: &str = "TOKENWEIR_ADMIN_TOKEN";
/// Bytes of text for a token.
const BYTES_PER_TOKEN: f64 = 4.0;
/// Keeps the words of requests before the run apart from those in it.
const BEFORE: u64 = 0x7761_726d;

impl Opening {
    pub(super) async fn of(bench: &Bench, target: Address) -> Result<Self, BenchError> {
        let load = &bench.load;
        let recorded = load.trace.as_deref().map(|file| jobs(file, load.seed)).transpose()?;
        let scenario = scenario(bench);
        let is_open = scenario.arrivals.is_open();
        let places = match scenario.arrivals {
            Arrivals::Closed { users } => users,
            _ => load.max_in_flight,
        };
        let is_bounded = load.requests.is_some() || load.trace.is_some();
        let until = load.duration.or((!is_bounded).then_some(USUAL));
        let limits = plan::Limits { requests: load.requests, until: until.filter(|_| is_open) };
        let plan = Plan::new(scenario.clone(), recorded.clone(), limits, load.seed);
        let salt = load.salt.unwrap_or_else(salt);
        let sender = sender(bench, target).await?;
        let synthesis = |salt| {
            let first: Vec<Job> = plan.clone().take(1).map(|planned| planned.job).collect();
            Synthesis::of(recorded.as_deref().unwrap_or(&first), BYTES_PER_TOKEN, salt)
        };
        warm_up(&sender, &plan, &synthesis(salt ^ BEFORE), load.warmup).await?;
        let admin = bench.whom.admin.clone();
        let admin = admin.map(|admin| -> Result<_, BenchError> {
            Ok(Asker::new(
                Client::new(Limits::default()),
                admin,
                usual(ADMIN_TOKEN)?.map(|token| token.bearer().clone()),
            ))
        });
        let run = Run {
            target: sender.asker.target().to_string(),
            model: sender.model.clone(),
            api: sender.shape.name().to_owned(),
            started: humantime::format_rfc3339_seconds(clock::wall()).to_string(),
            scenario,
            seed: load.seed,
            salt,
            objectives: Objectives {
                ttft: bench.shown.ttft.as_secs_f64(),
                tpot: bench.shown.tpot.as_secs_f64(),
            },
            max_lag: bench.shown.max_lag.as_secs_f64(),
        };
        let synthesis = synthesis(salt);
        let (admin, places) = (admin.transpose()?, places as usize);
        Ok(Self { run, sender, plan, synthesis, places, until, admin })
    }
}

/// The load that is named, with what is said otherwise.
fn scenario(bench: &Bench) -> Scenario {
    let load = &bench.load;
    let preset = load.scenario.unwrap_or(Preset::LowLoad).scenario();
    let mut scenario = match &load.trace {
        Some(_) => Scenario {
            name: "trace".to_owned(),
            arrivals: Arrivals::Recorded { speed: load.speed },
            prompt: None,
            output: None,
        },
        None => preset,
    };
    scenario.arrivals = match (load.rate, load.users, scenario.arrivals) {
        (Some(rate), _, _) if load.even => Arrivals::Constant { rate },
        (Some(rate), _, Arrivals::Bursts { size, .. }) => Arrivals::Bursts { rate, size },
        (Some(rate), _, _) => Arrivals::Poisson { rate },
        (None, Some(users), _) => Arrivals::Closed { users },
        (None, None, usual) => usual,
    };
    scenario.prompt = load.prompt_tokens.or(scenario.prompt);
    scenario.output = load.output_tokens.or(scenario.output);
    scenario
}

/// The requests of a trace. Time stamps that are rounded are spread over as much, or all of the
/// requests of a stamp would come at once.
fn jobs(file: &Path, seed: u64) -> Result<Arc<[Job]>, BenchError> {
    let read = File::open(file).map_err(TraceError::from);
    let read = read.and_then(|file| trace::read(BufReader::new(file)));
    let mut jobs = read.map_err(|error| BenchError::Trace(file.to_owned(), error))?;
    if trace::is_rounded(&jobs) {
        let mut random = fastrand::Rng::with_seed(seed);
        for job in &mut jobs {
            job.at += ROUNDED_TO.mul_f64(random.f64());
        }
        jobs.sort_by_key(|job| job.at);
    }
    Ok(jobs.into())
}

async fn sender(bench: &Bench, target: Address) -> Result<Sender, BenchError> {
    let whom = &bench.whom;
    let key = match (&whom.api_key_env, &whom.api_key_file) {
        (Some(name), _) => Some(Secret::Env(name.clone())),
        (None, Some(file)) => Some(Secret::File(file.clone())),
        (None, None) => None,
    };
    let key = match key {
        Some(key) => Some(key.resolve(variable).map_err(BenchError::Key)?),
        None => usual(USUAL_KEY)?,
    };
    let limits = Limits { headers: whom.timeout, ..Limits::default() };
    let asker = Asker::new(Client::new(limits), target, key.map(|key| key.bearer().clone()));
    let model = model(&asker, whom.model.as_deref()).await?;
    Ok(Sender { asker, model, shape: whom.api, timeout: whom.timeout })
}

/// The secret of a variable, if it is set.
fn usual(name: &str) -> Result<Option<SecretValue>, BenchError> {
    match Secret::Env(name.to_owned()).resolve(variable) {
        Err(SecretError::Unset(_)) => Ok(None),
        key => key.map(Some).map_err(BenchError::Key),
    }
}

async fn model(asker: &Asker, wanted: Option<&str>) -> Result<String, BenchError> {
    let target = || asker.target().to_string();
    let listed = match (asker.models().await, wanted) {
        // One that lists nothing may serve it nevertheless.
        (Err(AskError::Status(..) | AskError::Page(..)), Some(wanted)) => {
            return Ok(wanted.to_owned());
        }
        (listed, _) => listed?,
    };
    let all = || listed.join(", ");
    match (wanted, &*listed) {
        (Some(wanted), _) if listed.iter().any(|model| model == wanted) => Ok(wanted.to_owned()),
        (Some(wanted), _) => Err(BenchError::UnknownModel(target(), wanted.to_owned(), all())),
        (None, [model]) => Ok(model.clone()),
        (None, []) => Err(BenchError::NoModel(target())),
        (None, _) => Err(BenchError::SeveralModels(target(), all())),
    }
}

/// Sends requests like those of the run, one after the other.
async fn warm_up(
    sender: &Sender,
    plan: &Plan,
    synthesis: &Synthesis,
    count: u32,
) -> Result<(), BenchError> {
    for planned in plan.clone().take(count as usize) {
        let body = sender.body(&synthesis.prompt(&planned.job, planned.number), &planned.job);
        let answer = sender.answer(&planned.job, body, None).await;
        if let Err(Failure { kind, said }) = answer {
            let hint = hint(&kind);
            let said = said.map(|said| format!(": {said}")).unwrap_or_default();
            return Err(BenchError::Warmup(kind.into_owned(), format!("{said}{hint}")));
        }
    }
    Ok(())
}

/// What to do about a failure.
fn hint(kind: &str) -> &'static str {
    match kind {
        "status_401" | "status_403" => "; give a key with --api-key-env or --api-key-file",
        "status_404" | "status_405" => "; is --api what it serves? There are completions and chat",
        "status_400" | "status_422" => "; are its context and --prompt-tokens long enough?",
        "no_stream" => "; it answered without an event stream, as no OpenAI-compatible server does",
        "truncated" => "; its stream ended without a finish reason",
        _ => "",
    }
}

fn salt() -> u64 {
    let since = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

//! The commands, each from its arguments to its exit code.

mod assembly;
mod banner;
mod bench;
mod collectors;
mod demo;
mod diagnose;
mod diagnosing;
mod doctor;
mod files;
mod generate;
mod hearing;
mod key;
mod keys;
mod lasting;
mod load;
mod logs;
mod memory;
mod parts;
mod ports;
mod progress;
mod real;
mod reload;
mod replay;
mod signals;
mod sources;
mod systemd;
mod top;
mod tune;

use crate::cli::{Check, CheckFormat, Cli, Command, Serve};
use crate::config::{self, Config, ConfigError};
use crate::sim::{self, Sim};
use assembly::Assembly;
use std::fmt::Display;
use std::future::Future;
use std::process::ExitCode;

/// `EX_USAGE`: what was asked for, on the command line or in a file, is wrong.
const USAGE: u8 = 64;

/// Runs a command to its end.
pub fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Serve(serve) => run_serve(*serve),
        Command::Check(check) => run_check(&check),
        Command::Diagnose(diagnose) => block_on(diagnose::run(*diagnose)),
        Command::Doctor(doctor) => block_on(doctor::run(*doctor)),
        Command::Top(top) => block_on(top::run(*top)),
        Command::Sim(settings) => block_on(run_sim(settings)),
        Command::Demo(demo) => block_on(demo::run(demo)),
        Command::Replay(replay) => replay::run(&replay),
        Command::Bench(bench) => bench::run(&bench),
        Command::Tune(tune) => tune::run(*tune),
        Command::Generate(generate) => generate::run(&generate),
        Command::Key => key::run(),
    }
}

fn run_serve(serve: Serve) -> ExitCode {
    logs::log_panics();
    block_on(self::serve(serve, signals::stop()))
}

/// Serves until `shutdown`, on the runtime that polls it.
pub async fn serve(serve: Serve, shutdown: impl Future<Output = ()> + Send + 'static) -> ExitCode {
    let loaded = Config::load(serve.config.as_deref(), serve.overrides.clone());
    let loaded = match loaded.and_then(|loaded| loaded.require_backend().map(|()| loaded)) {
        Ok(loaded) => loaded,
        Err(error) => return wrong(&error),
    };
    let logs = logs::start(&loaded.config.log);
    let assembly = match Assembly::new(&loaded, serve.overrides, &logs, variable).await {
        Ok(assembly) => assembly,
        Err(error) => return failed(&error),
    };
    banner::show(&assembly, &logs);
    match assembly.run(shutdown).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run_check(check: &Check) -> ExitCode {
    let result = config::check(&check.file, variable);
    match check.format {
        #[expect(clippy::print_stdout, reason = "it is what was asked for")]
        CheckFormat::Json => println!("{}", result.to_json()),
        #[expect(clippy::print_stdout, reason = "it is what was asked for")]
        CheckFormat::Human if result.is_ok() => println!("{result}"),
        CheckFormat::Human => eprintln!("{result}"),
    }
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(USAGE) }
}

async fn run_sim(settings: sim::Settings) -> ExitCode {
    let sim = match Sim::bind(&settings).await {
        Ok(sim) => sim,
        Err(error) => return failed(&error),
    };
    for addr in sim.addrs() {
        eprintln!(
            "simulated vLLM replica on http://{addr}, serving {}",
            settings.models.join(", ")
        );
    }
    sim.run(signals::stop()).await;
    ExitCode::SUCCESS
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn wrong(error: &ConfigError) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(USAGE)
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {}", Chain(error));
    ExitCode::FAILURE
}

/// An error with its causes on one line.
struct Chain<'a>(&'a dyn std::error::Error);

impl Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut error = self.0;
        while let Some(source) = error.source() {
            write!(f, ": {source}")?;
            error = source;
        }
        Ok(())
    }
}

fn block_on(command: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => failed(&error),
    }
}

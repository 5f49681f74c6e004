//! `cargo bench --bench passthrough`: measures the cost of the gateway relative to a minimal proxy.
//!
//! ```text
//! core 1: this process                core 0: a child                  (PASSTHROUGH_CORES)
//! clients ───────────────────────────► floor: hyper, and nothing else       ──┐
//!                                      other proxies, if installed          ──┤
//!                                      off, metrics, all: the real program  ──┤
//! backend with scripted answers ◄─────────────────────────────────────────────┘
//! ```
//!
//! The subjects alternate per round, so that background load of the machine affects all of them;
//! for latency they alternate every second, because background load changes within seconds by more
//! than a proxy adds. Their CPU time is taken from the scheduler. A chunk carries its write time,
//! so a client can compute its transit time. The medians of the rounds are printed with the limits
//! for the gateway with all telemetry. The bench fails if a limit is missed.
//!
//! | variable | |
//! |---|---|
//! | `PASSTHROUGH` | sections: `behavior,chunks,requests,latency,memory,prompts,idle,fleet,cores` |
//! | `PASSTHROUGH_LONG=1` | also run the section that takes minutes |
//! | `PASSTHROUGH_ROUNDS` | number of rounds |
//! | `PASSTHROUGH_PROGRAM` | the gateway to measure, such as the one of `packaging/release.sh`; its own build if not given |
//! | `PASSTHROUGH_RECORD=1` | writes the ratios to hyper to `ratios.txt`; else the bench fails if one is more than 10 % worse |
//! | `PASSTHROUGH_CORES` | the core of the subjects and the core of this process; default: `0,1` |
//! | `PASSTHROUGH_BACKENDS` | number of backends in the section `fleet`; default: 1,000 |
//! | `PASSTHROUGH_ONLY` | subjects: `hyper,nginx,haproxy,envoy,vllm-router,smg,litellm,off,metrics,log,traces,all`; `all` alone to profile it |
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the results are printed")]

mod backend;
mod behavior;
mod clients;
mod cpu;
#[path = "../support/engine.rs"]
mod engine;
mod fleet;
mod floor;
mod loads;
mod memory;
mod ratios;
#[path = "../../tests/suite/support/request_reader.rs"]
mod request_reader;
mod scripts;
mod section;
mod servers;
mod subject;
mod table;

use section::Section;
use std::net::SocketAddr;
use std::process::ExitCode;
use table::Measured;
use tokio::runtime::{self, Runtime};

// The allocator of the program, also for the reference proxy.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 3;
/// Default number of backends in the section `fleet`.
const FLEET_BACKENDS: usize = 1_000;

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    if let Some(backends) = env_value(floor::BACKENDS) {
        floor::run(&backends, env_value(floor::CORES).as_deref() == Some("1"));
        return ExitCode::SUCCESS;
    }
    subject::pin_to_the_other_core();
    // 5,000 concurrent streams need 10,000 open files in this process, and as many in the subject.
    tokenweir::commands::raise_file_limit();
    let backends =
        env_value("PASSTHROUGH_BACKENDS").map_or(FLEET_BACKENDS, |count| count.parse().unwrap());
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let backends = runtime.block_on(backend::start(backends));
    let missed: usize = sections()
        .map(|section| measure(section, &backends, &runtime))
        .sum();
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn env_value(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn sections() -> impl Iterator<Item = Section> {
    let only = env_value("PASSTHROUGH");
    let is_asked = move |section: &Section| {
        only.as_ref()
            .is_none_or(|list| list.split(',').any(|name| name == section.as_str()))
    };
    let has_long = env_value("PASSTHROUGH_LONG").is_some();
    Section::ALL
        .into_iter()
        .filter(move |section| match section {
            Section::Long => has_long,
            section => is_asked(section),
        })
}

/// Measures a section in all rounds and prints it. Returns the number of missed limits.
fn measure(section: Section, backends: &[SocketAddr], runtime: &Runtime) -> usize {
    let rounds = env_value("PASSTHROUGH_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let mut measured = Measured::new(section, env_value("PASSTHROUGH_ONLY").as_deref());
    let kinds = measured.kinds();
    for number in 1..=rounds {
        let round = runtime.block_on(section.round(&kinds, backends));
        for (kind, figures) in kinds.iter().zip(&round) {
            let (section, kind) = (section.as_str(), kind.as_str());
            eprintln!("{section}, round {number} of {rounds}, {kind}: {figures:.2?}");
        }
        measured.add_round(round);
    }
    let (table, missed) = measured.table();
    print!("{table}");
    let (ratios, worse) = ratios::check(section, &measured.ratios());
    print!("\n{ratios}");
    missed + worse
}

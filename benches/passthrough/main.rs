//! `cargo bench --bench passthrough`: what does the gateway cost, against a bare pass-through?
//!
//! ```text
//! core 1: this process                core 0: a child
//! clients ───────────────────────────► floor: hyper, and nothing else       ──┐
//!                                      off, metrics, all: the real program  ──┤
//! backend with scripted answers ◄─────────────────────────────────────────────┘
//! ```
//!
//! The subjects take turns, round by round, so that whatever else the machine does meets them all; for
//! latency second by second, because a machine's mood changes within seconds by more than a proxy adds.
//! Their CPU time is what the scheduler says of their threads; a chunk carries the moment at which
//! it was written, so a client knows how long it was under way. Medians of the rounds are printed,
//! each with what it must reach with all telemetry; it fails if one is missed.
//!
//! | variable | |
//! |---|---|
//! | `PASSTHROUGH` | sections: `chunks,requests,latency,memory,prompts,idle,fleet,cores` |
//! | `PASSTHROUGH_LONG=1` | the section that takes minutes, too |
//! | `PASSTHROUGH_ROUNDS` | how often each subject has its turn |
//! | `PASSTHROUGH_PROGRAM` | the gateway to measure, such as the one of `packaging/release.sh`; its own build if not given |
//! | `PASSTHROUGH_REPLICAS` | of the section `fleet`, instead of 1,000 |
//! | `PASSTHROUGH_ONLY` | subjects: `hyper,off,metrics,log,traces,all`; `all` alone to profile it |
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the numbers are for people")]

mod backend;
mod clients;
mod cpu;
mod fleet;
mod floor;
mod loads;
mod memory;
mod section;
mod subject;
mod table;

use section::Section;
use std::net::SocketAddr;
use std::process::ExitCode;
use table::Measured;
use tokio::runtime::{self, Runtime};

// As in the gateway, for the floor too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ROUNDS: usize = 3;
/// Of the largest fleet.
const REPLICAS: usize = 1_000;

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    if let Some(backends) = given(floor::BACKENDS) {
        floor::run(&backends);
        return ExitCode::SUCCESS;
    }
    subject::pin_to_the_other_core();
    // 5,000 streams are 10,000 files here, and as many in the subject.
    rlimit::increase_nofile_limit(u64::MAX).unwrap();
    let replicas = given("PASSTHROUGH_REPLICAS").map_or(REPLICAS, |count| count.parse().unwrap());
    let replicas = backend::start(replicas);
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let missed: usize = sections().map(|section| measure(section, &replicas, &runtime)).sum();
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn given(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn sections() -> impl Iterator<Item = Section> {
    let only = given("PASSTHROUGH");
    let is_asked = move |section: &Section| {
        only.as_ref().is_none_or(|list| list.split(',').any(|name| name == section.name()))
    };
    let long = given("PASSTHROUGH_LONG").map(|_| Section::Long);
    Section::SHORT.into_iter().filter(is_asked).chain(long)
}

/// Measures a section and prints it; how many bars were missed.
fn measure(section: Section, replicas: &[SocketAddr], runtime: &Runtime) -> usize {
    let rounds = given("PASSTHROUGH_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let mut measured = Measured::new(section, given("PASSTHROUGH_ONLY").as_deref());
    let kinds = measured.kinds();
    for number in 1..=rounds {
        let round = runtime.block_on(section.round(&kinds, replicas));
        for (kind, found) in kinds.iter().zip(&round) {
            let (section, kind) = (section.name(), kind.name());
            eprintln!("{section}, round {number} of {rounds}, {kind}: {found:.2?}");
        }
        measured.keep(round);
    }
    let (table, missed) = measured.table();
    print!("{table}");
    missed
}

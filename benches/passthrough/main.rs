//! `cargo bench --bench passthrough`: what does the gateway cost, against a bare pass-through?
//!
//! ```text
//! core 1: this process                core 0: a child
//! clients ───────────────────────────► floor: hyper, and nothing else       ──┐
//!                                      off, metrics, all: the real program  ──┤
//! backend with scripted answers ◄─────────────────────────────────────────────┘
//! ```
//!
//! The subjects take turns, round by round, so that whatever else the machine does meets them all.
//! Their CPU time is what the scheduler says of their threads; a chunk carries the moment at which
//! it was written, so a client knows how long it was under way. Medians of the rounds are printed,
//! and ratios to the floor. `PASSTHROUGH_ROUNDS` sets their number; `PASSTHROUGH_ONLY=all` leaves the
//! others out, to profile one.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "the numbers are for people")]

mod backend;
mod clients;
mod floor;
mod loads;
mod subject;
mod table;

use loads::{Figures, Sizes};
use std::process::ExitCode;
use subject::{Kind, Subject};
use tokio::runtime;

// As in the gateway, for the floor too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ROUNDS: usize = 5;

fn main() -> ExitCode {
    // `cargo test --all-targets` runs benches without this.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    if let Ok(backend) = std::env::var(floor::BACKEND) {
        floor::run(backend.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    subject::pin_to_the_other_core();
    let given = |name: &str| std::env::var(name).ok();
    let rounds = given("PASSTHROUGH_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let only = given("PASSTHROUGH_ONLY");
    let is_asked = |kind: &Kind| only.as_ref().is_none_or(|only| only == kind.name());
    let sizes = Sizes::default();
    let backend = backend::start();
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut measured: Vec<(Kind, Vec<Figures>)> =
        Kind::ALL.into_iter().filter(is_asked).map(|kind| (kind, Vec::new())).collect();
    for round in 1..=rounds {
        for (kind, figures) in &mut measured {
            let subject = Subject::start(*kind, backend);
            figures.push(runtime.block_on(loads::measure(&subject, &sizes)));
            eprintln!("round {round} of {rounds}: {}", kind.name());
        }
    }
    print!("{}", table::of(&measured));
    ExitCode::SUCCESS
}

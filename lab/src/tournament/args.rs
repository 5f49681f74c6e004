//! The flags of `tournament`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_protocol::units;
use tokenweir_replay::routers::RouterKind;

/// Arguments of `tokenweir-lab tournament`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct TournamentArgs {
    /// Only the setups whose names contain one of these texts. [default: all]
    #[arg(value_name = "NAME", value_delimiter = ',')]
    pub setups: Vec<String>,
    /// Policies, and other routers for comparison. The others are compared to the first. [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub policy: Vec<RouterKind>,
    /// Number of kinds of traffic that are drawn at random, in place of the named ones.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub drawn: Option<u32>,
    /// Loads in percent of the capacity.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [80, 95, 110])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub load: Vec<u32>,
    /// First seed of the traffic. Seed 0 defines the loads.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub first_seed: u64,
    /// Number of runs of each policy in a setup, each with other traffic.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Least number of requests of a run.
    #[arg(long, value_name = "N", default_value_t = 3000)]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    pub requests: u32,
    /// Least length of a run.
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    #[arg(value_parser = units::duration::parse)]
    pub duration: Duration,
    /// Number of gateways in front of the backends.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub gateways: u16,
    /// Configuration file of the gateway: sections `routing`, `admission` and `sessions`. [default: no file]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

const HELP: &str = "\
A setup is a kind of traffic, a fleet and a load: `retrieval/unequal/0.95`. The load is a share of the \
capacity: of the greatest load at which kv_aware without admission control, LMetric, llm-d with no-hit-lru or \
prefix_affinity has 90 % of its goodput without load. Policies of the gateway run with its admission control, \
which also refuses requests that cannot meet the TTFT objective; other routers run without. The regret of a policy in a setup is its distance from the \
best policy of the setup, in points of goodput. `tokenweir-lab replay --help` describes the values of \
--policy.";

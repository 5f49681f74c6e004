//! The flags of `tournament`.

use clap::Args;
use std::path::PathBuf;
use tokenweir_replay::routers::RouterKind;

/// Arguments of `tokenweir-lab tournament`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct TournamentArgs {
    /// Number of setups (backends and load), which are drawn at random.
    #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub setups: u64,
    /// Random seed from which the setups are drawn.
    #[arg(long, value_name = "N", default_value_t = 1, env = "TOKENWEIR_TOURNAMENT_SETUP_SEED")]
    pub setup_seed: u64,
    /// Policies, and other routers for comparison. [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "TOKENWEIR_TOURNAMENT_POLICY")]
    pub policy: Vec<RouterKind>,
    /// Number of runs of each policy in a setup, each with another random seed.
    #[arg(long, value_name = "N", default_value_t = 5, env = "TOKENWEIR_TOURNAMENT_SEEDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Number of gateways in front of the backends.
    #[arg(long, value_name = "N", default_value_t = 1, env = "TOKENWEIR_TOURNAMENT_GATEWAYS")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub gateways: u16,
    /// Configuration file, for the weights of the default policy.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_TOURNAMENT_CONFIG")]
    pub config: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long, env = "TOKENWEIR_TOURNAMENT_JSON")]
    pub json: bool,
}

const HELP: &str = "\
The regret of a policy in a setup is its distance from the best policy of the setup, in points of \
goodput. `tokenweir-lab replay --help` describes the values of --policy.";

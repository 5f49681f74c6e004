//! `tokenweir replay`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_core::address::Address;
use tokenweir_core::units;
use tokenweir_lab::fleet::{self, Group};
use tokenweir_lab::router::RouterKind;

/// `tokenweir replay`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Replay {
    /// The trace: Mooncake's format, or a capture of this gateway.
    pub trace: PathBuf,
    /// Policies, and two other routers to compare them with. All, if not given.
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "TOKENWEIR_REPLAY_POLICY")]
    pub policy: Vec<RouterKind>,
    /// Equal replicas; may be given several times. Such as 4:prefill=40000,kv=600000.
    #[arg(long, value_name = "COUNT[:KEY=VALUE,...]", default_value = "8")]
    #[arg(env = "TOKENWEIR_REPLAY_REPLICAS", value_delimiter = ';')]
    pub replicas: Vec<Group>,
    /// How many times faster than it was recorded the trace is sent.
    #[arg(long, value_name = "X", default_value_t = 1.0, env = "TOKENWEIR_REPLAY_SPEED")]
    #[arg(value_parser = positive)]
    pub speed: f64,
    /// Find the speed at which the goodput of taking turns is this, and use it.
    #[arg(long, value_name = "SHARE", env = "TOKENWEIR_REPLAY_LOAD_AT", conflicts_with = "speed")]
    #[arg(value_parser = share)]
    pub load_at: Option<f64>,
    /// Objective: longest time to first token.
    #[arg(long, value_name = "DURATION", default_value = "2s", env = "TOKENWEIR_REPLAY_TTFT")]
    #[arg(value_parser = units::duration::parse)]
    pub ttft: Duration,
    /// Objective: longest time per output token after the first.
    #[arg(long, value_name = "DURATION", default_value = "100ms", env = "TOKENWEIR_REPLAY_TPOT")]
    #[arg(value_parser = units::duration::parse)]
    pub tpot: Duration,
    /// Runs of each policy, with different luck.
    #[arg(long, value_name = "N", default_value_t = 5, env = "TOKENWEIR_REPLAY_SEEDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Time between two looks at a replica.
    #[arg(long, value_name = "DURATION", default_value = "100ms", env = "TOKENWEIR_REPLAY_SCRAPE")]
    #[arg(value_parser = units::duration::parse)]
    pub scrape: Duration,
    /// Arrivals are spread over this time after their time stamps. By default not at all, or over
    /// 3s if the time stamps are rounded.
    #[arg(long, value_name = "DURATION", env = "TOKENWEIR_REPLAY_SPREAD")]
    #[arg(value_parser = units::duration::parse)]
    pub spread: Option<Duration>,
    /// Gateways side by side that know nothing of each other.
    #[arg(long, value_name = "N", default_value_t = 1, env = "TOKENWEIR_REPLAY_GATEWAYS")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub gateways: u16,
    /// Only so many requests of the trace.
    #[arg(long, value_name = "N", env = "TOKENWEIR_REPLAY_MAX_REQUESTS")]
    pub max_requests: Option<usize>,
    /// A configuration file, for the weights of the default policy.
    #[arg(long, value_name = "FILE", env = "TOKENWEIR_REPLAY_CONFIG")]
    pub config: Option<PathBuf>,
    /// One JSON object instead of a table.
    #[arg(long, env = "TOKENWEIR_REPLAY_JSON")]
    pub json: bool,
    /// In real time instead.
    #[command(flatten)]
    pub real: RealTime,
}

/// What is said of a replay in real time.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "In real time")]
pub struct RealTime {
    /// Send the trace to this server, as fast as it was recorded: a gateway, or one replica.
    #[arg(long = "real", value_name = "URL", env = "TOKENWEIR_REPLAY_REAL")]
    #[arg(value_parser = Address::parse)]
    #[arg(conflicts_with_all = ["policy", "replicas", "load_at", "seeds", "scrape", "gateways", "config"])]
    pub target: Option<Address>,
    /// The model to ask for. The first that the server tells, if not given.
    #[arg(long, value_name = "NAME", env = "TOKENWEIR_REPLAY_MODEL")]
    pub model: Option<String>,
    /// Send nothing after this time.
    #[arg(long = "for", value_name = "DURATION", env = "TOKENWEIR_REPLAY_FOR")]
    #[arg(value_parser = units::duration::parse)]
    pub duration: Option<Duration>,
    /// Most requests at the same time. Others wait, which counts as their latency.
    #[arg(long, value_name = "N", default_value_t = 1024, env = "TOKENWEIR_REPLAY_CONCURRENCY")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub concurrency: u32,
    /// Bytes of text for a token of prompt, in words of four bytes.
    #[arg(long, value_name = "X", default_value_t = 4.0, env = "TOKENWEIR_REPLAY_BYTES_PER_TOKEN")]
    #[arg(value_parser = positive)]
    pub bytes_per_token: f64,
    /// Another number makes other text: no cache knows it from a run before.
    #[arg(long, value_name = "N", default_value_t = 0, env = "TOKENWEIR_REPLAY_SALT")]
    pub salt: u64,
}

const HELP: &str = "\
Names for --policy: kv_aware, round_robin, random, least_requests, p2c, prefix_affinity, session;
llm_d (the default scorers of llm-d's endpoint picker) and radix_tree (the cache-aware policy of the
SGLang and vLLM routers).

Keys of a replica: prefill (tokens/s), kv (tokens), seqs, batch (tokens), step (ms), block (tokens).
Without any, it is a model of 8 billion parameters on a GPU of 80 GB: 30,000 tokens/s, 430,000
tokens, 256 sequences, 2,048 tokens a step, 10 ms for an empty step.

The engines are models of vLLM's scheduler; the policies and what they know are the gateway's own.

With --real, completions of made-up words are sent when they are due, whether or not others have
been answered, and times count from then. OPENAI_API_KEY is sent as the token, if it is set.";

fn positive(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| (0.001..=1000.0).contains(number));
    number.ok_or("expected a number from 0.001 to 1000")
}

fn share(text: &str) -> Result<f64, &'static str> {
    let share = text.parse().ok().filter(|share: &f64| *share > 0.0 && *share < 1.0);
    share.ok_or("expected a number between 0 and 1, such as 0.5")
}

impl Replay {
    /// What each replica is, in order.
    pub fn specs(&self) -> Vec<fleet::Spec> {
        let of_group = |group: &Group| vec![group.spec; group.count];
        self.replicas.iter().flat_map(of_group).collect()
    }
}

//! The flags of `replay`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_protocol::units;
use tokenweir_replay::cache_view::CacheView;
use tokenweir_replay::engine_groups::{self, EngineGroup};
use tokenweir_replay::routers::RouterKind;
use tokenweir_replay::workload::TrafficShape;

/// Arguments of `tokenweir-lab replay`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct ReplayArgs {
    /// The trace: a trace capture of the gateway, or Mooncake's format.
    #[arg(required_unless_present = "workload")]
    pub trace: Option<PathBuf>,
    /// Policies, and other routers for comparison. [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub policy: Vec<RouterKind>,
    /// Group of equal backends; can be given several times. Example: 4:prefill=40000,kv=600000.
    #[arg(
        long,
        value_name = "COUNT[:KEY=VALUE,...]",
        default_value = "8",
        value_delimiter = ';'
    )]
    pub backends: Vec<EngineGroup>,
    /// Speed of the trace relative to its recording.
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = parse_positive)]
    pub speed: f64,
    /// Find the speed at which round-robin routing has this goodput, and use it.
    #[arg(long, value_name = "SHARE", conflicts_with = "speed", value_parser = parse_share)]
    pub target_goodput: Option<f64>,
    /// Objective: time to first token.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    #[arg(value_parser = units::duration::parse)]
    pub ttft: Duration,
    /// Objective: time per output token after the first.
    #[arg(long, value_name = "DURATION", default_value = "100ms")]
    #[arg(value_parser = units::duration::parse)]
    pub tpot: Duration,
    /// Number of runs of each policy, each with another random seed.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Time between two scrapes of a backend.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = parse_interval)]
    pub scrape: Duration,
    /// Random delay of up to this time, added to each arrival. [default: none, or 3s if the time
    /// stamps of the trace are rounded]
    #[arg(long, value_name = "DURATION", value_parser = units::duration::parse)]
    pub jitter: Option<Duration>,
    /// Number of gateways in front of the backends. Several numbers: a table for each.
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    pub gateways: Vec<u16>,
    /// What the policies know about the contents of the prefix caches. approximate: the prompts that
    /// their own gateway sent. events: also the KV events for these prompts. exact: the true contents.
    /// exchange: the prompts and pending prompt tokens of all gateways. events+exchange, exact+exchange:
    /// both. Several values give a table for each.
    #[arg(
        long,
        value_name = "VIEW",
        default_value = "approximate",
        value_delimiter = ','
    )]
    pub cache_view: Vec<CacheView>,
    /// With an exchange: time that a message between gateways takes.
    #[arg(long, value_name = "DURATION", default_value = "5ms")]
    #[arg(value_parser = units::duration::parse)]
    pub exchange_delay: Duration,
    /// With an exchange: share of the messages that are lost.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = parse_loss)]
    pub exchange_loss: f64,
    /// Restart a backend at this interval, one after the other. Its cache is lost, requests without
    /// output fail over, and streams with output are cut. [default: no restarts]
    #[arg(long, value_name = "DURATION", value_parser = parse_interval)]
    pub restart_every: Option<Duration>,
    /// With --restart-every: time until a backend that restarts can serve.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1m",
        requires = "restart_every"
    )]
    #[arg(value_parser = units::duration::parse)]
    pub restart_downtime: Duration,
    /// Traffic that is generated instead of reading a trace.
    #[arg(long, value_name = "SHAPE", help = WORKLOAD_HELP, conflicts_with = "trace")]
    pub workload: Option<TrafficShape>,
    /// Use only the first N requests of the trace. [default for --workload: 10000]
    #[arg(long, value_name = "N")]
    pub max_requests: Option<usize>,
    /// Configuration file of the gateway: sections `routing`, `admission` and `sessions`. [default: no file]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

const HELP: &str = "\
Values of --policy: kv_aware, round_robin, random, least_requests, p2c, prefix_affinity, session; \
llm_d (default scorers of llm-d's endpoint picker), llm_d_no_hit_lru (with that scorer), \
llm_d_optimized (its recommended scorers), llm_d_predicted (its predicted-latency scheduling), \
radix_tree and vllm_router (the cache-aware policies of the SGLang and vLLM routers), smg (that of \
their successor), smetric (another one of the vLLM router), \
dynamo and dynamo_approximate (NVIDIA Dynamo's KV router with true and with estimated cache \
contents), thunder_agent and dynamo_sessions (admission of sessions of llm-d and of Dynamo), lmetric, dual_map, lpwl (least pending prefill with this prompt), five_terms and \
lookahead (rules that no router ships), exact_state (kv_aware on the true state of the engines), \
without_admission and without_sessions (kv_aware without admission control, and without admission of sessions), and backlog_and_share.

Keys of --backends: prefill (tokens/s), kv (tokens), seqs, batch (tokens), step (ms) and block \
(tokens). The defaults describe a model of 8 billion parameters on a GPU of 80 GB: 30,000 tokens/s, \
430,000 tokens, 256 sequences, 2,048 tokens per step, 10 ms for an empty step.

The engines are models of vLLM's scheduler. The policies, their inputs and their admission control are those \
of the gateway, with the objectives in `slos`; the other routers send each request at once.

To send a trace to a server: tokenweir-lab bench URL --trace FILE.";

const WORKLOAD_HELP: &str = "Generate this traffic instead of reading a trace: chat, reasoning, \
                             completion, system_prompts, conversation, agents, retrieval, mixed, \
                             ranked_documents, tenants, long_documents, batches, fast_tools or \
                             sub_agents. About one request per second";

fn parse_positive(text: &str) -> Result<f64, &'static str> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &f64| (0.001..=1000.0).contains(number));
    number.ok_or("expected a number from 0.001 to 1000")
}

/// Shortest allowed interval of a repeated event of the simulation. With a shorter interval, these events
/// would take more computing time than the requests.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = units::duration::parse(text).map_err(|error| error.to_string())?;
    let is_long_enough = interval >= MIN_INTERVAL;
    is_long_enough
        .then_some(interval)
        .ok_or_else(|| "expected at least 1ms".into())
}

fn parse_share(text: &str) -> Result<f64, &'static str> {
    let share = text
        .parse()
        .ok()
        .filter(|share: &f64| *share > 0.0 && *share < 1.0);
    share.ok_or("expected a number between 0 and 1, such as 0.5")
}

fn parse_loss(text: &str) -> Result<f64, &'static str> {
    let share = text
        .parse()
        .ok()
        .filter(|share: &f64| (0.0..=1.0).contains(share));
    share.ok_or("expected a number from 0 to 1, such as 0.01")
}

impl ReplayArgs {
    /// Path of the trace or name of the generated traffic, for reports. Empty: there is neither.
    pub fn trace_name(&self) -> String {
        let path = self.trace.as_ref().map(|path| path.display().to_string());
        path.or(self.workload.map(|shape| shape.as_str().to_owned()))
            .unwrap_or_default()
    }

    /// The simulation parameters of each backend of `--backends`, in the order of the groups.
    pub fn specs(&self) -> Vec<engine_groups::EngineSpec> {
        let group_specs = |group: &EngineGroup| vec![group.spec; group.count];
        self.backends.iter().flat_map(group_specs).collect()
    }
}

//! The options of the simulator. Each has an environment variable of the same name.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use super::engine::Spec;
use super::page::Dialect;
use super::request::Limits;

/// How many replicas, where, how large and how fast.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// Address of the first replica; the others take the ports that follow. Port 0: any free ports.
    #[arg(long, env = "TOKENWEIR_SIM_LISTEN", default_value_t = Settings::default().listen)]
    pub listen: SocketAddr,
    /// Number of replicas.
    #[arg(long, env = "TOKENWEIR_SIM_REPLICAS", default_value_t = Settings::default().replicas)]
    pub replicas: u16,
    /// Served model name; may be given several times, the first one is used in answers.
    #[arg(long = "model", value_name = "NAME", env = "TOKENWEIR_SIM_MODEL", value_delimiter = ',',
          default_values_t = Settings::default().models)]
    pub models: Vec<String>,
    /// KV cache blocks of each replica.
    #[arg(long, env = "TOKENWEIR_SIM_BLOCKS", default_value_t = Settings::default().blocks,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub blocks: u32,
    /// Tokens in a KV cache block.
    #[arg(long, env = "TOKENWEIR_SIM_BLOCK_SIZE", default_value_t = Settings::default().block_size,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub block_size: u32,
    /// Sequences that run at the same time.
    #[arg(long, env = "TOKENWEIR_SIM_MAX_NUM_SEQS",
          default_value_t = Settings::default().max_num_seqs,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_seqs: u32,
    /// Tokens computed in one step.
    #[arg(long, env = "TOKENWEIR_SIM_MAX_NUM_BATCHED_TOKENS",
          default_value_t = Settings::default().max_num_batched_tokens,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_batched_tokens: u32,
    /// Longest prompt and answer together, in tokens. Never more than the KV cache holds.
    #[arg(long = "max-model-len", value_name = "TOKENS", env = "TOKENWEIR_SIM_MAX_MODEL_LEN",
          default_value_t = Settings::default().max_len,
          value_parser = clap::value_parser!(u32).range(2..))]
    pub max_len: u32,
    /// Speed of prefill.
    #[arg(long, env = "TOKENWEIR_SIM_PREFILL_TOKENS_PER_SECOND",
          default_value_t = Settings::default().prefill_tokens_per_second)]
    pub prefill_tokens_per_second: Positive,
    /// Time of a step before its tokens are counted, in milliseconds.
    #[arg(long, env = "TOKENWEIR_SIM_STEP_MS", default_value_t = Settings::default().step_ms)]
    pub step_ms: Positive,
    /// Simulated seconds in one real second.
    #[arg(long, env = "TOKENWEIR_SIM_TIME_SCALE", default_value_t = Settings::default().time_scale)]
    pub time_scale: Positive,
    /// Idle connections are closed after this time.
    #[arg(long, env = "TOKENWEIR_SIM_KEEP_ALIVE",
          default_value_t = Settings::default().keep_alive)]
    pub keep_alive: humantime::Duration,
    /// Seed of the random ids.
    #[arg(long, env = "TOKENWEIR_SIM_SEED", default_value_t = Settings::default().seed)]
    pub seed: u64,
    /// Send X-Request-Id back, as vLLM does with its option of this name.
    #[arg(long = "enable-request-id-headers", env = "TOKENWEIR_SIM_ENABLE_REQUEST_ID_HEADERS")]
    pub request_id_headers: bool,
    /// Names on the metrics page.
    #[arg(long, env = "TOKENWEIR_SIM_METRICS_DIALECT", value_enum,
          default_value_t = Settings::default().metrics_dialect)]
    pub metrics_dialect: Dialect,
    /// An OTLP collector, spoken to in gRPC, that gets a span of each request, as from vLLM.
    #[arg(long, value_name = "URL", env = "TOKENWEIR_SIM_OTLP_TRACES_ENDPOINT")]
    pub otlp_traces_endpoint: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let spec = Spec::default();
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8101).into(),
            replicas: 2,
            models: vec!["sim-model".to_owned()],
            blocks: spec.blocks,
            block_size: spec.block_size,
            max_num_seqs: spec.max_num_seqs,
            max_num_batched_tokens: spec.max_num_batched_tokens,
            max_len: 8192,
            prefill_tokens_per_second: Positive(spec.prefill_token.as_secs_f64().recip()),
            step_ms: Positive(spec.step_base.as_secs_f64() * 1000.0),
            time_scale: Positive(1.0),
            keep_alive: Duration::from_secs(5).into(),
            seed: 0,
            request_id_headers: false,
            metrics_dialect: Dialect::Current,
            otlp_traces_endpoint: None,
        }
    }
}

impl Settings {
    /// The engine these settings describe.
    pub fn spec(&self) -> Spec {
        Spec {
            block_size: self.block_size,
            blocks: self.blocks,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            step_base: Duration::from_secs_f64(self.step_ms.get() / 1000.0),
            prefill_token: Duration::from_secs_f64(self.prefill_tokens_per_second.get().recip()),
            ..Spec::default()
        }
    }

    /// The longest prompt and answer together, in tokens.
    pub fn max_model_len(&self) -> u32 {
        self.max_len.min(self.spec().capacity())
    }

    /// The address of a replica; `None` if its port would be past the last.
    pub(super) fn addr(&self, number: u16) -> Option<SocketAddr> {
        let port = match self.listen.port() {
            0 => 0,
            first => first.checked_add(number)?,
        };
        Some(SocketAddr::new(self.listen.ip(), port))
    }

    /// The model that answers.
    pub(super) fn model(&self) -> &str {
        self.models.first().map_or("", String::as_str)
    }

    pub(super) fn limits(&self) -> Limits<'_> {
        Limits { models: &self.models, max_model_len: self.max_model_len() }
    }
}

/// A number from a millionth to a billion, with which times can be multiplied and divided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Positive(f64);

impl Positive {
    /// `None` if the number is out of range.
    pub fn new(number: f64) -> Option<Self> {
        (1e-6..=1e9).contains(&number).then_some(Self(number))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Positive {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.parse().ok().and_then(Self::new);
        number.ok_or("not a number between 0.000001 and 1000000000")
    }
}

impl fmt::Display for Positive {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        settings: Settings,
    }

    #[test]
    fn options_change_the_engine_and_the_ports_follow_each_other() {
        let line = "sim --listen 127.0.0.1:9000 --model a --model b --step-ms 2.5 --blocks 8";
        let settings = Command::parse_from(line.split(' ')).settings;
        assert_eq!(settings.models, ["a", "b"]);
        assert_eq!(settings.spec().step_base, Duration::from_micros(2500));
        assert_eq!(settings.max_model_len(), 128);
        assert_eq!(settings.addr(2), Some(SocketAddr::from(([127, 0, 0, 1], 9002))));
        let last = Settings { listen: ([127, 0, 0, 1], 65535).into(), ..Settings::default() };
        assert_eq!(last.addr(1), None);
        assert!(Command::try_parse_from(["sim", "--time-scale", "0"]).is_err());
    }
}

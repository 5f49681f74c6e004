//! The command-line options of the simulator. Each option has an environment variable.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::engine::EngineSpec;
use super::faults::SimulatedFaults;
use super::positive_number::PositiveNumber;
use tokenweir_engine::address::parse_listen_address;

/// Number, addresses, size and speed of the simulated backends.
#[derive(Debug, Clone, clap::Args)]
pub struct SimulatorSettings {
    /// Address of the first backend. The others listen on the following ports. Port 0 selects free
    /// ports.
    #[arg(long, default_value_t = Self::default().listen, value_parser = parse_listen_address)]
    pub listen: SocketAddr,
    /// Number of simulated backends.
    #[arg(long, default_value_t = Self::default().backends)]
    pub backends: u16,
    /// Served model name. Can be given several times; responses carry the first one.
    #[arg(long = "model", value_name = "NAME", value_delimiter = ',',
          default_values_t = Self::default().models)]
    pub models: Vec<String>,
    /// Number of KV cache blocks of each backend.
    #[arg(long, default_value_t = Self::default().blocks,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub blocks: u32,
    /// Number of tokens in a KV cache block.
    #[arg(long, default_value_t = Self::default().block_size,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub block_size: u32,
    /// Maximum number of sequences in a batch.
    #[arg(long,
          default_value_t = Self::default().max_num_seqs,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_seqs: u32,
    /// Maximum number of tokens computed in one step.
    #[arg(long,
          default_value_t = Self::default().max_num_batched_tokens,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_batched_tokens: u32,
    /// Maximum number of tokens of prompt and output together. The KV cache size is a further
    /// limit.
    #[arg(long = "max-model-len", value_name = "TOKENS",
          default_value_t = Self::default().max_len,
          value_parser = clap::value_parser!(u32).range(2..))]
    pub max_len: u32,
    /// Prefill speed in tokens per second.
    #[arg(long, default_value_t = Self::default().prefill_tokens_per_second)]
    pub prefill_tokens_per_second: PositiveNumber,
    /// Fixed time of each engine step in milliseconds, without the time for its tokens.
    #[arg(long, default_value_t = Self::default().step_ms)]
    pub step_ms: PositiveNumber,
    /// Simulated seconds per real second.
    #[arg(long, default_value_t = Self::default().time_scale)]
    pub time_scale: PositiveNumber,
    /// Time after which idle connections are closed.
    #[arg(long, default_value_t = Self::default().keep_alive)]
    pub keep_alive: humantime::Duration,
    /// Seed of the random ids.
    #[arg(long, default_value_t = Self::default().seed)]
    pub seed: u64,
    /// URL of an OTLP/gRPC collector that receives one span per request, as from vLLM.
    #[arg(long, value_name = "URL")]
    pub otlp_traces_endpoint: Option<String>,
    /// Publish KV events as vLLM does: the first backend at this port, the others at the following
    /// ports. Port 0 selects free ports. `GET /kv_event_sources` of a backend lists its ports, and
    /// `POST /reset_prefix_cache` clears its cache.
    #[arg(long, value_name = "PORT")]
    pub kv_events_port: Option<u16>,
    /// Port at which the first backend replays its KV events. The others replay at the following
    /// ports. Port 0 selects free ports.
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 0,
        requires = "kv_events_port"
    )]
    pub kv_events_replay_port: u16,
    /// Faults of the last backend.
    #[command(flatten)]
    pub faults: SimulatedFaults,
}

/// The settings against which a request is checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelLimits<'a> {
    pub(super) models: &'a [String],
    /// Maximum number of tokens of prompt and output together.
    pub(super) max_model_len: u32,
}

impl Default for SimulatorSettings {
    fn default() -> Self {
        let spec = EngineSpec::DEFAULT;
        Self {
            listen: (Ipv4Addr::LOCALHOST, 8101).into(),
            backends: 2,
            models: vec!["sim-model".to_owned()],
            blocks: spec.blocks,
            block_size: spec.block_size,
            max_num_seqs: spec.max_num_seqs,
            max_num_batched_tokens: spec.max_num_batched_tokens,
            max_len: 8192,
            prefill_tokens_per_second: PositiveNumber(spec.prefill_token.as_secs_f64().recip()),
            step_ms: PositiveNumber(spec.step_base.as_secs_f64() * 1000.0),
            time_scale: PositiveNumber(1.0),
            keep_alive: Duration::from_secs(5).into(),
            seed: 0,
            otlp_traces_endpoint: None,
            kv_events_port: None,
            kv_events_replay_port: 0,
            faults: SimulatedFaults::default(),
        }
    }
}

impl SimulatorSettings {
    /// The parameters of the simulated engine at its start, according to these settings.
    pub fn spec(&self) -> EngineSpec {
        self.spec_after(Duration::ZERO)
    }

    /// The parameters of the simulated engine at the time `elapsed` after its start, including the effects of
    /// configured faults.
    pub(super) fn spec_after(&self, elapsed: Duration) -> EngineSpec {
        let spec = EngineSpec {
            block_size: self.block_size,
            blocks: self.blocks,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            step_base: Duration::from_secs_f64(self.step_ms.get() / 1000.0),
            prefill_token: Duration::from_secs_f64(self.prefill_tokens_per_second.get().recip()),
            ..EngineSpec::DEFAULT
        };
        self.faults.apply(spec, elapsed)
    }

    /// The settings of the backend with an index, from 0. Only the last backend has faults.
    pub(super) fn of_backend(&self, number: u16) -> Self {
        let is_faulty = number + 1 == self.backends;
        let faults = if is_faulty {
            self.faults.clone()
        } else {
            SimulatedFaults::default()
        };
        Self {
            faults,
            ..self.clone()
        }
    }

    /// Maximum number of prompt and output tokens together: the option `--max-model-len`, or the size of the KV
    /// cache if that is smaller.
    pub fn max_model_len(&self) -> u32 {
        self.max_len.min(self.spec().capacity())
    }

    /// The address of the backend with an index, from 0. The first backend has the port `first`. `None`: the
    /// port number would exceed 65535.
    pub(super) fn addr(&self, first: u16, number: u16) -> Option<SocketAddr> {
        let port = match first {
            0 => 0,
            first => first.checked_add(number)?,
        };
        Some(SocketAddr::new(self.listen.ip(), port))
    }

    /// The model name in responses: the first configured name.
    pub(super) fn model(&self) -> &str {
        self.models.first().map_or("", String::as_str)
    }

    pub(super) fn limits(&self) -> ModelLimits<'_> {
        ModelLimits {
            models: &self.models,
            max_model_len: self.max_model_len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestCommand {
        #[command(flatten)]
        settings: SimulatorSettings,
    }

    #[test]
    fn options_set_engines_and_consecutive_ports() {
        let line = "sim --listen 127.0.0.1:9000 --model a --model b --step-ms 2.5 --blocks 8";
        let settings = TestCommand::parse_from(line.split(' ')).settings;
        assert_eq!(settings.models, ["a", "b"]);
        assert_eq!(settings.spec().step_base, Duration::from_micros(2500));
        assert_eq!(settings.max_model_len(), 128);
        assert_eq!(
            settings.addr(9000, 2),
            Some(SocketAddr::from(([127, 0, 0, 1], 9002)))
        );
        assert_eq!(settings.addr(65535, 1), None);
        assert!(TestCommand::try_parse_from(["sim", "--time-scale", "0"]).is_err());
    }

    #[test]
    fn only_the_last_simulated_backend_has_faults() {
        let line = "sim --backends 3 --slow-factor 4 --faulty-blocks 8 --listen :9000";
        let settings = TestCommand::parse_from(line.split(' ')).settings;
        let [healthy, faulty] = [0, 2].map(|number| settings.of_backend(number));
        assert_eq!(healthy.spec(), EngineSpec::DEFAULT);
        assert_eq!(faulty.spec().step_base, EngineSpec::DEFAULT.step_base * 4);
        assert_eq!(faulty.max_model_len(), 128);
    }
}

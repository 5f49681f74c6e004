//! Parses the backends of an experiment: groups with equal engines.

use std::str::FromStr;
use std::time::Duration;
pub use tokenweir_sim::engine::EngineSpec;

/// A group of backends with equal engines, such as `4:prefill=20000,kv=400000`.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineGroup {
    /// Number of backends in the group, from 1 to 10,000.
    pub count: usize,
    /// Engine of each backend in the group.
    pub spec: EngineSpec,
}

/// The keys of a group and their units. Error messages show this text.
const GROUP_KEYS: &str =
    "prefill (tokens/s), kv (tokens), seqs, batch (tokens), step (ms), block (tokens)";

/// The default engine: a model with 8 billion parameters on a GPU with 80 GB. It computes 30,000
/// prefill tokens per second, takes 10 ms for a pass over the weights, and holds 430,000 tokens of
/// 128 KiB in its KV cache, which it reads at 3.3 TB/s.
pub fn default_engine_spec() -> EngineSpec {
    EngineSpec {
        block_size: 64,
        blocks: 430_000 / 64,
        max_num_seqs: 256,
        max_num_batched_tokens: 2048,
        step_base: Duration::from_millis(10),
        prefill_token: Duration::from_nanos(33_333),
        decode_sequence: Duration::from_micros(30),
        kv_token: Duration::from_nanos(40),
        ..EngineSpec::DEFAULT
    }
}

impl FromStr for EngineGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (count, keys) = text.split_once(':').unwrap_or((text, ""));
        let count: usize = count
            .parse()
            .map_err(|_| format!("`{count}` is not a number of backends"))?;
        if !(1..=10_000).contains(&count) {
            return Err("the number of backends must be from 1 to 10000".to_owned());
        }
        let mut spec = default_engine_spec();
        let mut tokens = f64::from(spec.capacity());
        for pair in keys.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or(format!("`{pair}` is not of the form KEY=VALUE"))?;
            let value: f64 = value
                .parse()
                .ok()
                .filter(|value: &f64| *value >= 0.001 && *value <= 1e9)
                .ok_or(format!(
                    "`{value}` is not a value for {key}: use 0.001 to 1e9"
                ))?;
            match key {
                "prefill" => spec.prefill_token = Duration::from_secs_f64(value.recip()),
                "kv" => tokens = value,
                "seqs" => spec.max_num_seqs = value as u32,
                "batch" => spec.max_num_batched_tokens = value as u32,
                "step" => spec.step_base = Duration::from_secs_f64(value / 1e3),
                "block" => spec.block_size = (value as u32).max(1),
                _ => return Err(format!("unknown key `{key}`; the keys are {GROUP_KEYS}")),
            }
        }
        spec.blocks = (tokens / f64::from(spec.block_size)).max(1.0) as u32;
        Ok(Self { count, spec })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_a_count_and_differences() {
        assert_eq!(
            "8".parse(),
            Ok(EngineGroup {
                count: 8,
                spec: default_engine_spec()
            })
        );
        let group: EngineGroup = "2:prefill=20000,kv=6400".parse().unwrap();
        assert_eq!((group.count, group.spec.blocks), (2, 100));
        assert_eq!(group.spec.prefill_token, Duration::from_micros(50));
    }

    #[test]
    fn an_invalid_backend_group_is_reported() {
        let error = |text: &str| text.parse::<EngineGroup>().unwrap_err();
        assert_eq!(error("x"), "`x` is not a number of backends");
        assert_eq!(error("0"), "the number of backends must be from 1 to 10000");
        assert_eq!(error("1:kv"), "`kv` is not of the form KEY=VALUE");
        assert_eq!(
            error("1:kv=-1"),
            "`-1` is not a value for kv: use 0.001 to 1e9"
        );
        assert!(error("1:gpu=1").starts_with("unknown key `gpu`"));
    }
}

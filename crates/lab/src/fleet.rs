//! The replicas of an experiment: groups of equal ones.

use std::str::FromStr;
use std::time::Duration;
pub use tokenweir_sim::engine::Spec;

/// Equal replicas, as in `4:prefill=20000,kv=400000`.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// How many.
    pub count: usize,
    /// What each is.
    pub spec: Spec,
}

const KEYS: &str =
    "prefill (tokens/s), kv (tokens), seqs, batch (tokens), step (ms), block (tokens)";

/// A model of 8 billion parameters on a GPU of 80 GB: 30,000 prefill tokens a second, 10 ms for a
/// pass over the weights, and 128 KiB for each of 430,000 tokens, read at 3.3 TB/s.
pub fn usual() -> Spec {
    Spec {
        block_size: 64,
        blocks: 430_000 / 64,
        max_num_seqs: 256,
        max_num_batched_tokens: 2048,
        step_base: Duration::from_millis(10),
        prefill_token: Duration::from_nanos(33_333),
        decode_sequence: Duration::from_micros(30),
        kv_token: Duration::from_nanos(40),
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (count, keys) = text.split_once(':').unwrap_or((text, ""));
        let count: usize =
            count.parse().map_err(|_| format!("`{count}` is not a number of replicas"))?;
        if !(1..=10_000).contains(&count) {
            return Err("there can be 1 to 10000 replicas".to_owned());
        }
        let mut spec = usual();
        let mut tokens = f64::from(spec.capacity());
        for pair in keys.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or(format!("`{pair}` is not KEY=VALUE"))?;
            let value: f64 = value
                .parse()
                .ok()
                .filter(|value: &f64| *value >= 0.001 && *value <= 1e9)
                .ok_or(format!("`{value}` is not a number that {key} can be"))?;
            match key {
                "prefill" => spec.prefill_token = Duration::from_secs_f64(value.recip()),
                "kv" => tokens = value,
                "seqs" => spec.max_num_seqs = value as u32,
                "batch" => spec.max_num_batched_tokens = value as u32,
                "step" => spec.step_base = Duration::from_secs_f64(value / 1e3),
                "block" => spec.block_size = (value as u32).max(1),
                _ => return Err(format!("`{key}` is not known; there are {KEYS}")),
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
    fn a_group_says_how_many_and_what_differs_from_the_usual() {
        assert_eq!("8".parse(), Ok(Group { count: 8, spec: usual() }));
        let group: Group = "2:prefill=20000,kv=6400".parse().unwrap();
        assert_eq!((group.count, group.spec.blocks), (2, 100));
        assert_eq!(group.spec.prefill_token, Duration::from_micros(50));
    }

    #[test]
    fn what_is_wrong_with_a_group_is_said() {
        let error = |text: &str| text.parse::<Group>().unwrap_err();
        assert_eq!(error("x"), "`x` is not a number of replicas");
        assert_eq!(error("0"), "there can be 1 to 10000 replicas");
        assert_eq!(error("1:kv"), "`kv` is not KEY=VALUE");
        assert_eq!(error("1:kv=-1"), "`-1` is not a number that kv can be");
        assert!(error("1:gpu=1").starts_with("`gpu` is not known"));
    }
}

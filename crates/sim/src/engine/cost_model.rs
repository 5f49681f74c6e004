//! Effects on the time of a batch that a linear model does not have.
//!
//! They show whether a routing policy that was developed on linear engines also works on engines with these
//! effects.

use std::time::Duration;

/// Effects on the time of an engine step beyond the linear terms of [`EngineSpec`](super::EngineSpec).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// Whether a step takes the longer of its compute time (prefill) and its memory time (weights and KV
    /// cache), as in the roofline model. `false`: it takes their sum.
    pub is_roofline: bool,
    /// Seconds for each pair of a computed prompt token and a token of its context. The number of pairs is the
    /// quadratic part of attention.
    pub attention_pair_seconds: f64,
    /// Standard deviation of the natural logarithm of a random factor that lengthens or shortens each step. The
    /// median factor is 1.
    pub jitter: f64,
    /// Share of steps that take ten times as long, from 0 to 1. Such pauses come from garbage collection or
    /// page faults, for example.
    pub pause_share: f64,
    /// Whether the batch of a decode step is padded to the size of the next larger captured CUDA graph, and
    /// takes as long as that size.
    pub has_batch_buckets: bool,
    /// Mean number of draft tokens that speculative decoding accepts per sequence and step. 0: there is no
    /// speculative decoding.
    pub accepted_drafts: f64,
    /// Seconds for which the API server is busy with a request before the engine gets it. Not the engine, but
    /// the code that drives it, applies this value and `tokenize_seconds`.
    pub front_end_seconds: f64,
    /// Seconds per prompt token for which the API server is busy with tokenization.
    pub tokenize_seconds: f64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BatchWork {
    pub(super) prefill_tokens: u32,
    pub(super) decoded_sequences: u32,
    /// Total number of computed tokens of the sequences in the batch, which attention reads.
    pub(super) context: u32,
    /// Pairs of a computed prompt token and a token of its context.
    pub(super) attention_pairs: f64,
}

/// Factor by which a pause of the process lengthens a step.
const PAUSE_FACTOR: f64 = 10.0;
/// Maximum number of draft tokens that one sequence accepts in one step.
const DRAFT_LENGTH_MAX: u32 = 8;

impl BatchWork {
    /// Adds the prefill of `scheduled` prompt tokens. `computed` is the number of tokens of the
    /// sequence that are computed at the end of the step, including the scheduled tokens.
    pub(super) fn add_prefill(&mut self, scheduled: u32, computed: u32) {
        self.prefill_tokens += scheduled;
        let scheduled = f64::from(scheduled);
        let computed = f64::from(computed);
        self.attention_pairs += scheduled * (computed - scheduled / 2.0);
    }
}

impl CostModel {
    /// A cost model without any effect: the time of a batch is the sum of its linear terms.
    pub const LINEAR: Self = Self {
        is_roofline: false,
        attention_pair_seconds: 0.0,
        jitter: 0.0,
        pause_share: 0.0,
        has_batch_buckets: false,
        accepted_drafts: 0.0,
        front_end_seconds: 0.0,
        tokenize_seconds: 0.0,
    };

    /// Number of sequences that determines the time of a decode step: with batch buckets the size of the CUDA
    /// graph, and without them the number of decoding sequences.
    pub(super) fn padded(&self, sequences: u32) -> u32 {
        if self.has_batch_buckets {
            graph_size(sequences)
        } else {
            sequences
        }
    }

    /// Time of attention between the computed prompt tokens and their context.
    pub(super) fn attention(&self, work: &BatchWork) -> Duration {
        Duration::from_secs_f64(self.attention_pair_seconds * work.attention_pairs)
    }

    /// Time of a step from its compute time and its memory time, with random effects.
    pub(super) fn combine(
        &self,
        compute: Duration,
        memory: Duration,
        random: &mut fastrand::Rng,
    ) -> Duration {
        let time = if self.is_roofline {
            memory.max(compute)
        } else {
            memory + compute
        };
        time.mul_f64(self.random_factor(random))
    }

    /// A random number of draft tokens that one sequence accepts in one step.
    pub(super) fn accepted_drafts(&self, random: &mut fastrand::Rng) -> u32 {
        if self.accepted_drafts <= 0.0 {
            return 0;
        }
        // If each draft is accepted with this probability, `accepted_drafts` is the mean number of drafts
        // before the first rejected one.
        let acceptance = self.accepted_drafts / (1.0 + self.accepted_drafts);
        (0..DRAFT_LENGTH_MAX)
            .take_while(|_| random.f64() < acceptance)
            .count() as u32
    }

    fn random_factor(&self, random: &mut fastrand::Rng) -> f64 {
        if self.jitter <= 0.0 && self.pause_share <= 0.0 {
            return 1.0;
        }
        let pause = if random.f64() < self.pause_share {
            PAUSE_FACTOR
        } else {
            1.0
        };
        pause * (self.jitter * standard_normal(random)).exp()
    }
}

/// A standard normal variate, by the method of Box and Muller (1958).
pub fn standard_normal(random: &mut fastrand::Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

/// Size of the smallest CUDA graph for a number of sequences: 1, 2, 4 and multiples of 8, as in
/// vLLM's default `cudagraph_capture_sizes`.
fn graph_size(sequences: u32) -> u32 {
    match sequences {
        0..=2 => sequences,
        3..=4 => 4,
        _ => sequences.next_multiple_of(8),
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine_spec::EngineSpec;
    use super::*;

    fn duration(cost_model: CostModel, work: &BatchWork) -> f64 {
        let spec = EngineSpec {
            cost_model,
            ..EngineSpec::DEFAULT
        };
        spec.step_duration(work, &mut fastrand::Rng::with_seed(1))
            .as_secs_f64()
    }

    #[test]
    fn a_step_takes_the_longer_of_both_times() {
        let mut work = BatchWork {
            decoded_sequences: 100,
            ..BatchWork::default()
        };
        work.add_prefill(1_000, 1_000);
        let model = CostModel {
            is_roofline: true,
            ..CostModel::LINEAR
        };
        assert!((duration(CostModel::LINEAR, &work) - 0.118).abs() < 1e-9);
        assert!((duration(model, &work) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn attention_takes_longer_for_later_parts() {
        let model = CostModel {
            attention_pair_seconds: 1e-9,
            ..CostModel::LINEAR
        };
        let at = |computed| {
            let mut work = BatchWork::default();
            work.add_prefill(1_000, computed);
            duration(model, &work)
        };
        assert!((at(1_000) - 0.1105).abs() < 1e-9);
        assert!((at(31_000) - 0.1405).abs() < 1e-9);
    }

    #[test]
    fn step_times_have_the_configured_jitter() {
        let model = CostModel {
            jitter: 0.3,
            pause_share: 0.01,
            ..CostModel::LINEAR
        };
        let mut random = fastrand::Rng::with_seed(7);
        let mut factors: Vec<f64> = (0..20_000)
            .map(|_| model.random_factor(&mut random))
            .collect();
        factors.sort_by(f64::total_cmp);
        assert!((factors[10_000] - 1.0).abs() < 0.02, "{}", factors[10_000]);
        let long = factors.iter().filter(|factor| **factor > 4.0).count();
        assert!((150..250).contains(&long), "{long}");
    }

    #[test]
    fn the_configured_mean_of_drafts_is_accepted() {
        let model = CostModel {
            accepted_drafts: 1.5,
            ..CostModel::LINEAR
        };
        let mut random = fastrand::Rng::with_seed(7);
        let sum: u32 = (0..20_000)
            .map(|_| model.accepted_drafts(&mut random))
            .sum();
        assert!((1.4..1.55).contains(&(f64::from(sum) / 20_000.0)), "{sum}");
    }

    #[test]
    fn sequences_are_padded_to_graph_sizes() {
        assert_eq!([0, 1, 3, 5, 8, 9].map(graph_size), [0, 1, 4, 8, 8, 16]);
    }
}

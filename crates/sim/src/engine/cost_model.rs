//! Effects on the time of a batch that a linear model lacks.
//!
//! A routing policy that was developed on linear engines must also work on engines with these
//! effects.

use std::time::Duration;

/// Effects on the time of an engine step beyond the linear terms of [`EngineSpec`](super::EngineSpec).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// Whether the time of a step is the longer of its compute time (prefill) and its memory time
    /// (weights and KV cache), as in the roofline model. Otherwise it is their sum.
    pub is_roofline: bool,
    /// Seconds for each pair of a computed prompt token and a token of its context: the quadratic
    /// part of attention.
    pub attention_pair_seconds: f64,
    /// Standard deviation of the natural logarithm of the factor by which a step takes longer. The
    /// median factor is 1.
    pub jitter: f64,
    /// Share of steps that take ten times as long, from 0 to 1: garbage collection, page faults and
    /// other pauses of the process.
    pub pause_share: f64,
    /// Whether a decode step takes as long as for the next larger captured CUDA graph, because the
    /// batch is padded to the size of that graph.
    pub has_batch_buckets: bool,
    /// Mean number of draft tokens that speculative decoding accepts per sequence and step. 0: no
    /// speculative decoding.
    pub accepted_drafts: f64,
    /// Seconds per request for which the API server is busy before the engine gets the request. The
    /// engine ignores this value and `tokenize_seconds`. The code that drives the engine applies
    /// them.
    pub front_end_seconds: f64,
    /// Seconds per prompt token for which the API server is busy with tokenization.
    pub tokenize_seconds: f64,
}

/// The work of one batch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BatchWork {
    pub(super) prefill_tokens: u32,
    pub(super) decoded_sequences: u32,
    /// Number of computed tokens of all sequences of the batch.
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

    /// Number of sequences that determines the time of a decode step: the size of the CUDA graph
    /// with batch buckets, otherwise the number of decoding sequences.
    pub(super) fn padded(&self, sequences: u32) -> u32 {
        if self.has_batch_buckets {
            graph_size(sequences)
        } else {
            sequences
        }
    }

    /// Time of attention over the context of prompt tokens.
    pub(super) fn attention(&self, work: &BatchWork) -> Duration {
        Duration::from_secs_f64(self.attention_pair_seconds * work.attention_pairs)
    }

    /// Time of a step with a compute time and a memory time, including random effects.
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
        // With this probability per draft, the mean number of drafts before the first rejected
        // draft is `accepted_drafts`.
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

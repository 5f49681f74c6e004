//! Samples of the candidates of a large pool.

mod candidate_sampler;
mod load_hint;

pub use candidate_sampler::CandidateSampler;

//! Samples of the candidates of a large fleet.

mod candidate_sampler;
mod load_hint;

pub use candidate_sampler::CandidateSampler;

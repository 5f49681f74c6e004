//! Prompt prefixes: the hashes of a prompt's blocks, and tables of the prompts that were sent to
//! each backend.

mod prefix_hints;
pub mod prefix_table;
mod prompt_fingerprint;

pub(super) use prefix_hints::PrefixHints;
pub use prompt_fingerprint::PromptFingerprint;

/// Random block hashes for tests.
#[cfg(test)]
fn blocks(seed: u64, count: usize) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u64(..)).take(count).collect()
}

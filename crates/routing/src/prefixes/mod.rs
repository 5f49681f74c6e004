//! Prompt prefixes: the hashes of the blocks of a prompt, and tables of the blocks that were sent to each
//! backend. A block is 512 bytes of the prompt. Its hash covers the block and all bytes before it.

mod prefix_hints;
pub mod prefix_table;
mod prompt_fingerprint;

pub(super) use prefix_hints::PrefixHints;
pub use prompt_fingerprint::PromptFingerprint;

/// Random block hashes for tests.
#[cfg(test)]
fn blocks(seed: u64, count: usize) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u64(..))
        .take(count)
        .collect()
}

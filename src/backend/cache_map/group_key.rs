//! The name of a group that is the same at all backends.

/// Identifies a group of prompts at all backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum GroupKey {
    /// Blocks that belong to no group.
    Other,
    /// The hash of the first block of text.
    Text(u64),
    /// The hash of a block of the engine whose text is not known: another gateway sent the prompts.
    Block(u64),
}

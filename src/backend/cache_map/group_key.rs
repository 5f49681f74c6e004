//! The name of a group that is the same at all backends.

/// Identifies a group of prompts at all backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum GroupKey {
    /// Blocks that belong to no group.
    Other,
    /// The hash of the first text block.
    Text(u64),
    /// The hash of an engine block whose text is not known: another gateway sent the prompts.
    Block(u64),
}

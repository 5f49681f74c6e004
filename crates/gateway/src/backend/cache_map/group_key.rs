//! The key of a group of prompts, which is the same at all backends.

/// Identifies a group of prompts at all backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum GroupKey {
    /// Blocks that belong to no group.
    Other,
    /// The hash of the text block with which all prompts of the group begin.
    Text(u64),
    /// The hash of the engine block that identifies the group. The text is not known, because
    /// another gateway sent the prompts.
    Block(u64),
}

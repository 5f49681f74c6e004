//! Numbers of groups of prompts within one cache. A number takes one byte, because the table of cached blocks
//! stores one for each block.

/// The number of a group of prompts within one prefix cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupNumber(pub u8);

/// The groups of prompts that lose their numbers to new groups. Their blocks belong to
/// [`GroupNumber::OTHER`] from now on.
#[derive(Debug, Clone)]
pub struct FreedGroups([bool; GroupNumber::COUNT]);

impl GroupNumber {
    /// The number for all blocks that belong to no group.
    pub const OTHER: Self = Self(0);
    /// Greatest number of groups in one prefix cache, including [`Self::OTHER`].
    pub const COUNT: usize = 256;

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl FreedGroups {
    pub(crate) fn new(freed: &[GroupNumber]) -> Self {
        let mut is_freed = [false; GroupNumber::COUNT];
        for group in freed {
            is_freed[group.index()] = true;
        }
        Self(is_freed)
    }

    /// Whether this group loses its number.
    pub fn contains(&self, group: GroupNumber) -> bool {
        self.0[group.index()]
    }
}

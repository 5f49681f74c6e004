//! Priority classes of the admission queue, in the order of service. A class has the requests of the tier with
//! the same name.

use std::sync::Arc;

/// Class of requests without a tier, and of requests whose tier is not in the list of classes.
pub const DEFAULT_CLASS: &str = "default";

/// The classes, from the highest to the lowest. The default class is always among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorityClasses {
    /// Names of the classes, the highest first.
    names: Vec<Arc<str>>,
    default_index: usize,
}

impl PriorityClasses {
    /// Classes with these names, the highest first. If [`DEFAULT_CLASS`] is missing, it is appended.
    pub fn new(names: impl IntoIterator<Item = Arc<str>>) -> Self {
        let mut names: Vec<Arc<str>> = names.into_iter().collect();
        let default_index = names.iter().position(|name| &**name == DEFAULT_CLASS);
        let default_index = default_index.unwrap_or_else(|| {
            names.push(DEFAULT_CLASS.into());
            names.len() - 1
        });
        Self {
            names,
            default_index,
        }
    }

    /// The index of the class of a tier. 0 is the highest class.
    pub fn class_of_tier(&self, tier: &str) -> usize {
        self.names
            .iter()
            .position(|name| &**name == tier)
            .unwrap_or(self.default_index)
    }

    /// Names of the classes, the highest first.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }
}

impl Default for PriorityClasses {
    fn default() -> Self {
        Self::new([])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlisted_tier_has_the_default_class() {
        let default_last = PriorityClasses::new(["gold".into(), "silver".into()]);
        assert_eq!(
            ["gold", "silver", "", "free"].map(|tier| default_last.class_of_tier(tier)),
            [0, 1, 2, 2]
        );
        let default_middle =
            PriorityClasses::new(["gold".into(), "default".into(), "batch".into()]);
        assert_eq!(
            ["gold", "", "free", "batch"].map(|tier| default_middle.class_of_tier(tier)),
            [0, 1, 1, 2]
        );
        assert_eq!(PriorityClasses::default().names(), ["default".into()]);
    }
}

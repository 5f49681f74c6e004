//! The classes of the room: tiers, in the order in which they are served.

use std::sync::Arc;

/// The class of every tier that is not named, and of requests without one.
pub const DEFAULT_CLASS: &str = "default";

/// Tiers from the highest class to the lowest. There is always at least one, the default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    names: Vec<Arc<str>>,
    default: usize,
}

impl Classes {
    /// Classes of these names. All other tiers stand where [`DEFAULT_CLASS`] does: last, if it is
    /// not among them.
    pub fn new(names: impl IntoIterator<Item = Arc<str>>) -> Self {
        let mut names: Vec<Arc<str>> = names.into_iter().collect();
        let default = names.iter().position(|name| &**name == DEFAULT_CLASS);
        let default = default.unwrap_or_else(|| {
            names.push(DEFAULT_CLASS.into());
            names.len() - 1
        });
        Self { names, default }
    }

    /// The class of a tier; 0 is the highest.
    pub fn of(&self, tier: &str) -> usize {
        self.names.iter().position(|name| &**name == tier).unwrap_or(self.default)
    }

    /// The names, from the highest to the lowest.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }
}

impl Default for Classes {
    fn default() -> Self {
        Self::new([])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_that_is_not_named_has_the_default_class_wherever_that_stands() {
        let last = Classes::new(["gold".into(), "silver".into()]);
        assert_eq!(["gold", "silver", "", "free"].map(|tier| last.of(tier)), [0, 1, 2, 2]);
        let middle = Classes::new(["gold".into(), "default".into(), "batch".into()]);
        assert_eq!(["gold", "", "free", "batch"].map(|tier| middle.of(tier)), [0, 1, 1, 2]);
        assert_eq!(Classes::default().names(), ["default".into()]);
    }
}

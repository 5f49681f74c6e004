//! Names that are labels: from closed sets, so that no client can make new series.

use std::fmt;
use std::sync::Arc;

/// A label value for a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelLabel(Option<Arc<str>>);

/// The name of a replica in the configuration, by default its host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(Arc<str>);

// === impl ModelLabel, BackendId ===

impl ModelLabel {
    /// The label value of [`ModelLabel::other`].
    pub const OTHER: &str = "_other";

    /// The label of a model that a replica serves or the configuration names.
    pub fn known(model: Arc<str>) -> Self {
        Self(Some(model))
    }

    /// The label of everything else.
    pub const fn other() -> Self {
        Self(None)
    }

    /// Whether it is one of those.
    pub const fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// The label value.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or(Self::OTHER)
    }
}

impl BackendId {
    /// A name.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The label value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

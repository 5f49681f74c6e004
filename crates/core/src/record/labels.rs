//! Names that are labels: from closed sets, so that no client can make new series.

use std::fmt;
use std::sync::Arc;

/// A label value for a model.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelLabel(Value);

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Value {
    Own(Arc<str>),
    /// A model that is served, and one too many to be a label value.
    Folded(Arc<str>),
    Other,
}

/// The name of a replica in the configuration, by default its host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(Arc<str>);

// === impl ModelLabel, BackendId ===

impl ModelLabel {
    /// The label value of [`ModelLabel::other`].
    pub const OTHER: &str = "_other";

    /// The label of a model that a replica serves or the configuration names.
    pub const fn known(model: Arc<str>) -> Self {
        Self(Value::Own(model))
    }

    /// The label of a model that a replica serves, and that is one too many to be a label value.
    pub const fn folded(model: Arc<str>) -> Self {
        Self(Value::Folded(model))
    }

    /// The label of everything else.
    pub const fn other() -> Self {
        Self(Value::Other)
    }

    /// Whether a replica serves the model or the configuration names it.
    pub const fn is_known(&self) -> bool {
        !matches!(self.0, Value::Other)
    }

    /// Whether the model is a label value itself.
    pub const fn is_label(&self) -> bool {
        matches!(self.0, Value::Own(_))
    }

    /// The label value.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Value::Own(model) => model,
            Value::Folded(_) | Value::Other => Self::OTHER,
        }
    }

    /// The name of the model, for logs and spans, whose values need no bound.
    pub fn name(&self) -> &str {
        match &self.0 {
            Value::Own(model) | Value::Folded(model) => model,
            Value::Other => Self::OTHER,
        }
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

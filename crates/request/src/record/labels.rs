//! Label values from closed sets, so that no client can create new time series.

use std::sync::Arc;

/// A label value for a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModelLabel {
    /// A model that a backend serves or the configuration names. Its name is a label value.
    Known(Arc<str>),
    /// A model that a backend serves, beyond the limit of label values.
    OverLimit(Arc<str>),
    /// A model that no backend serves and the configuration does not name.
    #[default]
    Unknown,
}

// === impl ModelLabel ===

impl ModelLabel {
    /// The label value of models whose name is not a label value.
    pub const OTHER: &str = "_other";

    /// Whether a backend serves the model or the configuration names it.
    pub const fn is_known(&self) -> bool {
        !matches!(self, Self::Unknown)
    }

    /// Whether the name of the model is a label value.
    pub const fn is_label_value(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    /// The label value: the name of the model or [`ModelLabel::OTHER`].
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(model) => model,
            Self::OverLimit(_) | Self::Unknown => Self::OTHER,
        }
    }

    /// The name of the model for logs and spans, where values need no limit.
    pub fn name(&self) -> &str {
        match self {
            Self::Known(model) | Self::OverLimit(model) => model,
            Self::Unknown => Self::OTHER,
        }
    }
}

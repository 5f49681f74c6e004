//! Label values from closed sets, so that no client can create new time series.

use std::sync::Arc;

/// A model name that is safe as a label value, because clients cannot invent it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ModelLabel {
    /// A model that a backend serves or the configuration names. Its name is a label value.
    Known(Arc<str>),
    /// A model that a backend serves, beyond the limit of label values.
    OverLimit(Arc<str>),
    /// A model that no backend serves and the configuration does not name, as the client wrote it.
    Requested(Arc<str>),
    /// No model: the request names none, or it was not read.
    #[default]
    Unknown,
}

/// Maximum length of the name of an unknown model, in characters.
const MAX_REQUESTED_CHARS: usize = 100;

impl ModelLabel {
    /// The label value of models whose name is not a label value.
    pub const OTHER: &str = "_other";

    /// The label of a request for the model `name`, if the route of this model has the label `self`.
    #[must_use]
    pub fn requested_as(self, name: Option<&str>) -> Self {
        match name {
            Some(name) if self == Self::Unknown && !name.is_empty() => {
                let name: String = name.chars().take(MAX_REQUESTED_CHARS).collect();
                Self::Requested(name.into())
            }
            _ => self,
        }
    }

    /// Whether a backend serves the model or the configuration names it.
    pub const fn is_known(&self) -> bool {
        matches!(self, Self::Known(_) | Self::OverLimit(_))
    }

    /// Whether the name of the model is a label value.
    pub const fn is_label_value(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    /// The label value: the name of the model or [`ModelLabel::OTHER`].
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(model) => model,
            Self::OverLimit(_) | Self::Requested(_) | Self::Unknown => Self::OTHER,
        }
    }

    /// The name of the model if a backend serves it or the configuration names it, or [`ModelLabel::OTHER`].
    pub fn known_name(&self) -> &str {
        if self.is_known() {
            self.name()
        } else {
            Self::OTHER
        }
    }

    /// The name of the model for logs and spans, where values need no limit.
    pub fn name(&self) -> &str {
        match self {
            Self::Known(model) | Self::OverLimit(model) | Self::Requested(model) => model,
            Self::Unknown => Self::OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_models_keep_the_beginning_of_names() {
        let long = "é".repeat(1_000);
        let label = ModelLabel::Unknown.requested_as(Some(&long));
        assert_eq!(
            (label.as_str(), label.name()),
            ("_other", &*"é".repeat(100))
        );
        assert_eq!(label.known_name(), "_other");
        for name in [None, Some("")] {
            assert_eq!(ModelLabel::Unknown.requested_as(name), ModelLabel::Unknown);
        }
        let known = ModelLabel::Known("a".into());
        assert_eq!(known.clone().requested_as(Some("b")), known);
    }
}

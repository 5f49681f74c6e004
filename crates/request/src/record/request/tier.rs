//! The tier of a request: one of the configured names, from a header or from the client's tenant. The set of
//! tiers must be closed, because the tier is a label value.

use crate::record::ModelLabel;
use http::{HeaderMap, HeaderName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The priority group of a request, such as `gold`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Tier {
    /// The request names no tier.
    #[default]
    None,
    /// A tier that `tiers.names` lists.
    Known(Arc<str>),
    /// The request names a tier that is not configured.
    Other,
}

/// Maps requests to tiers.
#[derive(Debug, Clone, Default)]
pub struct TierResolver {
    /// The header whose value is the name of the tier. `None`: no header selects the tier.
    pub header: Option<HeaderName>,
    /// The list `tiers.names`.
    pub names: Vec<Arc<str>>,
    /// The priority in the engine's queue for requests of each tier. Lower numbers come first.
    pub priorities: BTreeMap<String, i32>,
}

impl Tier {
    /// The label value. Empty for [`Tier::None`].
    pub fn as_str(&self) -> &str {
        match self {
            Self::None => "",
            Self::Known(tier) => tier,
            Self::Other => ModelLabel::OTHER,
        }
    }
}

impl TierResolver {
    /// The priority of requests of a tier. `None`: the gateway sets no priority.
    pub fn priority(&self, tier: &Tier) -> Option<i32> {
        match tier {
            Tier::Known(name) => self.priorities.get(&**name).copied(),
            Tier::None | Tier::Other => None,
        }
    }

    /// The tier of a request with these headers.
    pub fn resolve(&self, headers: &HeaderMap) -> Tier {
        let requested = || self.header.as_ref().and_then(|name| headers.get(name));
        let is_requested = |name: &&Arc<str>| requested().is_some_and(|value| value == &***name);
        match self.names.iter().find(is_requested) {
            Some(configured) => Tier::Known(configured.clone()),
            None if requested().is_some_and(|value| !value.is_empty()) => Tier::Other,
            None => Tier::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn unconfigured_tiers_have_the_label_other() {
        let resolver = TierResolver {
            header: Some(HeaderName::from_static("x-tier")),
            names: vec!["gold".into(), "free".into()],
            priorities: BTreeMap::new(),
        };
        let tier = |header: Option<&'static str>| {
            let header = header.map(HeaderValue::from_static);
            let headers = header.map(|value| (HeaderName::from_static("x-tier"), value));
            resolver
                .resolve(&headers.into_iter().collect())
                .as_str()
                .to_owned()
        };
        assert_eq!(tier(None), "");
        assert_eq!(tier(Some("free")), "free");
        assert_eq!(tier(Some("made-up-by-a-client")), "_other");
        assert_eq!(tier(Some("")), "");
    }
}

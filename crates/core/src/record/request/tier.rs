//! The tier of a request: one of the configured names, from a header or from the client's API key.
//! The tier is a label value, so the set of its values is closed.

use crate::record::ModelLabel;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// The tier of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Tier {
    /// The request names no tier.
    #[default]
    None,
    /// A configured tier.
    Known(Arc<str>),
    /// The request names a tier that is not configured.
    Other,
}

/// Maps requests to tiers.
#[derive(Debug, Clone, Default)]
pub struct TierResolver {
    /// The header whose value is the name of the tier. `None`: no header selects the tier.
    pub header: Option<HeaderName>,
    /// The configured names of tiers.
    pub names: Vec<Arc<str>>,
    /// `Authorization` values and their tiers. They take precedence over the header.
    pub keys: Vec<(HeaderValue, Arc<str>)>,
}

// === impl Tier ===

impl Tier {
    /// The label value; empty for [`Tier::None`].
    pub fn as_str(&self) -> &str {
        match self {
            Self::None => "",
            Self::Known(tier) => tier,
            Self::Other => ModelLabel::OTHER,
        }
    }
}

// === impl TierResolver ===

impl TierResolver {
    /// The tier of a request with these headers.
    pub fn resolve(&self, headers: &HeaderMap) -> Tier {
        let key = headers.get(AUTHORIZATION);
        let is_key = |configured: &HeaderValue| {
            // The comparison takes constant time, because its duration must not reveal where the
            // values differ.
            key.is_some_and(|key| configured.as_bytes().ct_eq(key.as_bytes()).into())
        };
        let tier_of_key =
            self.keys.iter().find(|(configured, _)| is_key(configured)).map(|(_, tier)| tier);
        let requested = || self.header.as_ref().and_then(|name| headers.get(name));
        let is_requested = |name: &&Arc<str>| requested().is_some_and(|value| value == &***name);
        match tier_of_key.or_else(|| self.names.iter().find(is_requested)) {
            Some(configured) => Tier::Known(configured.clone()),
            None if requested().is_some_and(|value| !value.is_empty()) => Tier::Other,
            None => Tier::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_one_that_is_known_and_a_key_wins_over_a_header() {
        let mut gold = HeaderValue::from_static("Bearer gold-key");
        gold.set_sensitive(true);
        let resolver = TierResolver {
            header: Some(HeaderName::from_static("x-tier")),
            names: vec!["gold".into(), "free".into()],
            keys: vec![(gold.clone(), "gold".into())],
        };
        let tier = |pairs: &[(&'static str, &'static str)]| {
            let header = |(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            resolver.resolve(&pairs.iter().map(header).collect()).as_str().to_owned()
        };
        assert_eq!(tier(&[]), "");
        assert_eq!(tier(&[("x-tier", "free")]), "free");
        assert_eq!(tier(&[("x-tier", "made-up-by-a-client")]), "_other");
        assert_eq!(tier(&[("x-tier", "")]), "");
        assert_eq!(tier(&[("x-tier", "free"), ("authorization", "Bearer gold-key")]), "gold");
        assert_eq!(tier(&[("authorization", "Bearer other")]), "");
    }
}

//! The tier of a request: a word that the configuration knows, from a header or from the key that
//! the client sent. It is a label, so its values are bounded.

use super::ModelLabel;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// The tier of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Tier {
    /// The request names none.
    #[default]
    None,
    /// One of the configuration.
    Known(Arc<str>),
    /// It names one that is not known.
    Other,
}

/// How tiers are told.
#[derive(Debug, Clone, Default)]
pub struct Tiers {
    /// The header that names the tier.
    pub header: Option<HeaderName>,
    /// The names that are known.
    pub names: Vec<Arc<str>>,
    /// `Authorization` values and their tiers. They win over the header.
    pub keys: Vec<(HeaderValue, Arc<str>)>,
}

// === impl Tier ===

impl Tier {
    /// As a label value; empty if there is none.
    pub fn as_str(&self) -> &str {
        match self {
            Self::None => "",
            Self::Known(tier) => tier,
            Self::Other => ModelLabel::OTHER,
        }
    }
}

// === impl Tiers ===

impl Tiers {
    /// The tier of a request with these headers.
    pub fn of(&self, headers: &HeaderMap) -> Tier {
        let key = headers.get(AUTHORIZATION);
        let is_same = |known: &HeaderValue| {
            // The time that it takes tells nothing of where they differ.
            key.is_some_and(|key| known.as_bytes().ct_eq(key.as_bytes()).into())
        };
        let by_key = self.keys.iter().find(|(known, _)| is_same(known)).map(|(_, tier)| tier);
        let named = || self.header.as_ref().and_then(|name| headers.get(name));
        match by_key
            .or_else(|| self.names.iter().find(|name| named().is_some_and(|it| it == &***name)))
        {
            Some(known) => Tier::Known(known.clone()),
            None if named().is_some_and(|value| !value.is_empty()) => Tier::Other,
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
        let tiers = Tiers {
            header: Some(HeaderName::from_static("x-tier")),
            names: vec!["gold".into(), "free".into()],
            keys: vec![(gold.clone(), "gold".into())],
        };
        let tier = |pairs: &[(&'static str, &'static str)]| {
            let header = |(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            tiers.of(&pairs.iter().map(header).collect()).as_str().to_owned()
        };
        assert_eq!(tier(&[]), "");
        assert_eq!(tier(&[("x-tier", "free")]), "free");
        assert_eq!(tier(&[("x-tier", "made-up-by-a-client")]), "_other");
        assert_eq!(tier(&[("x-tier", "")]), "");
        assert_eq!(tier(&[("x-tier", "free"), ("authorization", "Bearer gold-key")]), "gold");
        assert_eq!(tier(&[("authorization", "Bearer other")]), "");
    }
}

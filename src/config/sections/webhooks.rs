//! The configuration of the webhooks that get the start and the end of verdicts.

use super::secret::Secret;
use crate::config::violation::{RuleViolation, require, violation_at};
use http::uri::PathAndQuery;
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use tokenweir_engine::address::{BackendAddress, BackendAddressError};

/// A webhook. It gets the start and the end of each verdict as JSON with a `text`, as Slack expects it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// URL of the webhook, or the location of a URL that is a secret.
    pub url: WebhookUrl,
    /// Bearer token. `None`: none.
    pub token: Option<Secret>,
}

/// The URL of a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum WebhookUrl {
    /// The URL itself.
    Plain(String),
    /// The location of a URL that is a secret, such as a URL of Slack, which contains a token.
    Secret(Secret),
}

/// A custom visitor, because the errors of an untagged enum do not name the mistake.
struct UrlVisitor;

impl<'de> Visitor<'de> for UrlVisitor {
    type Value = WebhookUrl;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL, `{ env: NAME }` or `{ file: PATH }`")
    }

    fn visit_str<E: serde::de::Error>(self, url: &str) -> Result<WebhookUrl, E> {
        Ok(WebhookUrl::Plain(url.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, location: A) -> Result<WebhookUrl, A::Error> {
        Secret::deserialize(MapAccessDeserializer::new(location)).map(WebhookUrl::Secret)
    }
}

impl<'de> Deserialize<'de> for WebhookUrl {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UrlVisitor)
    }
}

impl WebhookUrl {
    /// The location of the URL, if it is a secret. `None`: the URL itself is configured.
    pub fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Plain(_) => None,
            Self::Secret(secret) => Some(secret),
        }
    }
}

/// Maximum number of webhooks, because each has its own task and connection.
const MAX_WEBHOOKS: usize = 10;

/// The address, and the path with the query, of the URL of a webhook.
pub(crate) fn parse_url(url: &str) -> Result<(BackendAddress, PathAndQuery), BackendAddressError> {
    let not_url = || BackendAddressError::NotUrl(url.to_owned());
    if url.contains('@') {
        return Err(not_url());
    }
    let (address, path) = BackendAddress::split_path(url);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok((BackendAddress::parse(address)?, path.parse().map_err(|_| not_url())?))
}

/// Checks the URLs. Returns the first violation.
pub(crate) fn check(webhooks: &[WebhookConfig]) -> Result<(), RuleViolation> {
    let problem = format!("at most {MAX_WEBHOOKS} webhooks");
    require(webhooks.len() <= MAX_WEBHOOKS, "webhooks", problem)?;
    for (index, webhook) in webhooks.iter().enumerate() {
        let path = format!("webhooks.{index}.url");
        let WebhookUrl::Plain(url) = &webhook.url else { continue };
        // The other errors quote the URL, which may have a password.
        require(!url.contains('@'), &path, "write the token in `token`, not in the URL")?;
        parse_url(url).map_err(|error| violation_at(&path, error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parse_url;

    #[test]
    fn the_path_and_the_query_of_a_webhook_url_are_kept() {
        for (url, expected) in [
            ("http://hook:80/a/b?c=d", "http://hook:80/a/b?c=d"),
            ("hook:9000", "http://hook:9000/"),
            ("https://hook/x", "https://hook/x"),
        ] {
            let (address, path) = parse_url(url).unwrap();
            assert_eq!(address.uri(&path).to_string(), expected);
        }
    }
}

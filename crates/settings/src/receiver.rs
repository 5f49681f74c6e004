//! A receiver of HTTP requests in the configuration: its URL and its token, which can be secrets.

use crate::rule::{CheckResult, require, violation_at};
use crate::secret::{ConfiguredSecret, Environment, Secret, SecretValue, UnreadableSecret};
use http::uri::PathAndQuery;
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use tokenweir_engine::address::{BackendAddress, BackendAddressError};
use tokenweir_net::client::receiver::Receiver;
use tokenweir_protocol::settings_entry;

settings_entry! {
    /// A receiver of HTTP requests, such as a webhook.
    #[derive(Eq)]
    pub struct ReceiverConfig {
        /// The URL, or the location of a URL that is a secret.
        pub url: ReceiverUrl,
        /// Bearer token. `None`: none.
        pub token: Option<Secret>,
    }
}

/// The URL of a receiver, or the location of a secret URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ReceiverUrl {
    /// The URL itself.
    Plain(String),
    /// The location of a URL that is a secret, such as a URL of Slack, which contains a token.
    Secret(Secret),
}

/// The errors of a derived visitor for an untagged enum do not name the mistake, so this visitor is written by
/// hand.
struct UrlVisitor;

impl<'de> Visitor<'de> for UrlVisitor {
    type Value = ReceiverUrl;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL, `{ env: NAME }` or `{ file: PATH }`")
    }

    fn visit_str<E: serde::de::Error>(self, url: &str) -> Result<ReceiverUrl, E> {
        Ok(ReceiverUrl::Plain(url.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, location: A) -> Result<ReceiverUrl, A::Error> {
        Secret::deserialize(MapAccessDeserializer::new(location)).map(ReceiverUrl::Secret)
    }
}

impl<'de> Deserialize<'de> for ReceiverUrl {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(UrlVisitor)
    }
}

impl ReceiverUrl {
    /// The location of the URL, if the URL is a secret. `None`: the configuration contains the URL itself.
    pub fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Plain(_) => None,
            Self::Secret(secret) => Some(secret),
        }
    }
}

/// Divides the URL of a receiver into its address, and its path with the query.
fn parse_url(url: &str) -> Result<(BackendAddress, PathAndQuery), BackendAddressError> {
    let not_url = || BackendAddressError::NotUrl(url.to_owned());
    if url.contains('@') {
        return Err(not_url());
    }
    let (address, path) = BackendAddress::split_path(url);
    let path = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    };
    Ok((
        BackendAddress::parse(address)?,
        path.parse().map_err(|_| not_url())?,
    ))
}

/// Why a receiver cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReceiverError {
    /// The URL or the token cannot be read.
    #[error(transparent)]
    Secret(#[from] UnreadableSecret),
    /// The secret is not a URL. The error does not contain the secret.
    #[error("the URL of {0} is not an http or https URL")]
    Url(String),
}

impl ReceiverConfig {
    /// Returns the first violation of the rules. `path`: the path of the URL in the configuration.
    pub fn check(&self, path: &str) -> CheckResult {
        let ReceiverUrl::Plain(url) = &self.url else {
            return Ok(());
        };
        // The errors of the next check quote the URL, so a URL with a password fails here.
        require(
            !url.contains('@'),
            path,
            "write the token in `token`, not in the URL",
        )?;
        parse_url(url).map_err(|error| violation_at(path, error.to_string()))?;
        Ok(())
    }

    /// The token. `None`: no token is configured. `owner`: the part of the configuration, such as
    /// `webhooks[0]`.
    pub fn token_secret(&self, owner: &str) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new(format!("the token of {owner}"), self.token.as_ref())
    }

    /// The secret URL. `None`: the URL is not a secret.
    pub fn url_secret(&self, owner: &str) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new(format!("the URL of {owner}"), self.url.secret())
    }

    /// The receiver with its URL and its token. `env` returns the value of an environment variable.
    pub fn receiver(&self, owner: &str, env: impl Environment) -> Result<Receiver, ReceiverError> {
        let secret_url = ConfiguredSecret::resolve_any(self.url_secret(owner), &env)?;
        let url = match (&self.url, &secret_url) {
            (ReceiverUrl::Plain(url), _) => Some(url.as_str()),
            (_, secret) => secret
                .as_ref()
                .and_then(|url| str::from_utf8(url.as_bytes()).ok()),
        };
        let parsed = url.and_then(|url| parse_url(url).ok());
        let (address, path) = parsed.ok_or_else(|| ReceiverError::Url(owner.to_owned()))?;
        let token = ConfiguredSecret::resolve_any(self.token_secret(owner), env)?;
        let authorization = token.map(SecretValue::into_bearer);
        Ok(Receiver {
            address,
            path,
            authorization,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::parse_url;

    #[test]
    fn path_and_query_of_a_url_are_kept() {
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

//! The section `webhooks`: webhooks that get the start and the end of verdicts.

use http::uri::PathAndQuery;
use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use tokenweir_engine::address::{BackendAddress, BackendAddressError};
use tokenweir_settings::{
    CheckResult, ConfigSection, ConfiguredSecret, Environment, ReloadClass, Secret, SecretList,
    SecretValue, UnreadableSecret, require, violation_at,
};
use tokenweir_webhooks::WebhookEndpoint;

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

/// The section `webhooks`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = Vec<WebhookConfig>;
    const RELOAD: ReloadClass = ReloadClass::AtOnce;

    fn check(webhooks: &Vec<WebhookConfig>, _: &C) -> CheckResult {
        if webhooks.len() > MAX_WEBHOOKS {
            return Err(violation_at(
                "webhooks",
                format!("at most {MAX_WEBHOOKS} webhooks"),
            ));
        }
        for (index, webhook) in webhooks.iter().enumerate() {
            webhook.check(&format!("webhooks.{index}.url"))?;
        }
        Ok(())
    }

    fn list_secrets<'a>(webhooks: &'a Vec<WebhookConfig>, list: &mut SecretList<'a>) {
        for (index, webhook) in webhooks.iter().enumerate() {
            let owner = format!("webhooks[{index}]");
            list.add_reloaded(format!("webhooks.{index}.url"), webhook.url_secret(&owner));
            list.add_reloaded(
                format!("webhooks.{index}.token"),
                webhook.token_secret(&owner),
            );
        }
    }
}

/// Why a webhook cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhooksError {
    /// The URL or the token cannot be read.
    #[error(transparent)]
    Secret(#[from] UnreadableSecret),
    /// The secret is not a URL. The error does not contain the secret.
    #[error("the URL of {0} is not an http or https URL")]
    Url(String),
}

impl WebhookConfig {
    /// Returns the first violation of the rules. `path`: the path of the URL in the configuration.
    pub(in crate::config) fn check(&self, path: &str) -> CheckResult {
        let WebhookUrl::Plain(url) = &self.url else {
            return Ok(());
        };
        // The other errors quote the URL, which may have a password.
        require(
            !url.contains('@'),
            path,
            "write the token in `token`, not in the URL",
        )?;
        parse_url(url).map_err(|error| violation_at(path, error.to_string()))?;
        Ok(())
    }

    /// The token. `None`: there is none. `owner`: the part of the configuration, such as `webhooks[0]`.
    pub(in crate::config) fn token_secret(&self, owner: &str) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new(format!("the token of {owner}"), self.token.as_ref())
    }

    /// The secret URL. `None`: the URL is not a secret.
    pub(in crate::config) fn url_secret(&self, owner: &str) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new(format!("the URL of {owner}"), self.url.secret())
    }

    /// The endpoint. `env` returns the value of an environment variable.
    pub(in crate::config) fn endpoint(
        &self,
        owner: &str,
        env: impl Environment,
    ) -> Result<WebhookEndpoint, WebhooksError> {
        let secret_url = ConfiguredSecret::resolve_any(self.url_secret(owner), &env)?;
        let url = match (&self.url, &secret_url) {
            (WebhookUrl::Plain(url), _) => Some(url.as_str()),
            (_, secret) => secret
                .as_ref()
                .and_then(|url| str::from_utf8(url.as_bytes()).ok()),
        };
        let parsed = url.and_then(|url| parse_url(url).ok());
        let (address, path) = parsed.ok_or_else(|| WebhooksError::Url(owner.to_owned()))?;
        let token = ConfiguredSecret::resolve_any(self.token_secret(owner), env)?;
        let authorization = token.map(SecretValue::into_bearer);
        Ok(WebhookEndpoint {
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

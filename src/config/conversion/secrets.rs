//! The secrets of a configuration. The gateway reads each secret where it needs it while it starts.
//! `tokenweir check` reads all secrets.

use crate::config::root::Config;
use crate::config::sections::access::AccessConfig;
use crate::config::sections::backends::BackendConfig;
use crate::config::sections::identities::IdentitiesConfig;
use crate::config::sections::peer_exchange::PeerExchangeConfig;
use crate::config::sections::secret::{Secret, SecretValue, UnreadableSecret};
use crate::config::sections::webhooks::WebhookConfig;

/// A secret of the configuration with its use.
pub struct ConfiguredSecret<'a> {
    /// The use, such as `the admin token (access.admin_token)`.
    purpose: String,
    secret: &'a Secret,
}

impl<'a> ConfiguredSecret<'a> {
    /// Combines a secret with its use. `None`: the secret is not configured.
    fn new(purpose: impl Into<String>, secret: Option<&'a Secret>) -> Option<Self> {
        Some(Self { purpose: purpose.into(), secret: secret? })
    }

    /// Reads the secret. `env` returns the value of an environment variable.
    pub fn resolve(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<SecretValue, UnreadableSecret> {
        let purpose = self.purpose.clone();
        self.secret.resolve(env).map_err(|source| UnreadableSecret { purpose, source })
    }
}

impl BackendConfig {
    pub(super) fn secret(&self) -> Option<ConfiguredSecret<'_>> {
        let purpose = format!("the api_key of backend `{}`", self.id());
        ConfiguredSecret::new(purpose, self.api_key.as_ref())
    }
}

impl WebhookConfig {
    /// The token of the webhook at this index. `None`: the webhook has no token.
    pub(super) fn token_secret(&self, index: usize) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new(format!("the token of webhooks[{index}]"), self.token.as_ref())
    }

    /// The secret URL of the webhook at this index. `None`: its URL is not a secret.
    pub(super) fn url_secret(&self, index: usize) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new(format!("the URL of webhooks[{index}]"), self.url.secret())
    }
}

impl AccessConfig {
    pub(super) fn admin_token_secret(&self) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new("the admin token (access.admin_token)", self.admin_token.as_ref())
    }

    pub(super) fn salt_secret(&self) -> Option<ConfiguredSecret<'_>> {
        let secret = self.cache_salt_secret.as_ref();
        ConfiguredSecret::new("the secret of salts (access.cache_salt_secret)", secret)
    }
}

impl IdentitiesConfig {
    pub(super) fn hash_secret(&self) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new("the secret of identities (identities.secret)", self.secret.as_ref())
    }
}

impl PeerExchangeConfig {
    pub(super) fn key_secret(&self) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new("the key of the exchange (peer_exchange.key)", self.key.as_ref())
    }

    pub(super) fn password_secret(&self) -> Option<ConfiguredSecret<'_>> {
        let purpose = "the password of the exchange (peer_exchange.password)";
        ConfiguredSecret::new(purpose, self.password.as_ref())
    }
}

impl Config {
    /// The secrets that a reload reads again, without those of discovered backends.
    pub fn reloaded_secrets(&self) -> impl Iterator<Item = &Secret> {
        let backends = self.backends.iter().filter_map(|backend| backend.api_key.as_ref());
        let discovery = self.discovery.iter().filter_map(|source| source.api_key.as_ref());
        let webhooks =
            self.webhooks.iter().flat_map(|entry| [entry.url.secret(), entry.token.as_ref()]);
        backends.chain(discovery).chain(webhooks.flatten())
    }

    /// All secrets, each with the path of its value.
    pub fn secrets(&self) -> Vec<(String, ConfiguredSecret<'_>)> {
        let backends = self.backends.iter().enumerate().filter_map(|(index, backend)| {
            Some((format!("backends.{index}.api_key"), backend.secret()?))
        });
        let discovery = self.discovery.iter().enumerate().filter_map(|(index, source)| {
            let purpose = format!("the api_key of discovery[{index}]");
            let secret = ConfiguredSecret::new(purpose, source.api_key.as_ref())?;
            Some((format!("discovery.{index}.api_key"), secret))
        });
        let webhooks = self.webhooks.iter().enumerate().flat_map(|(index, webhook)| {
            let at = |key: &str| format!("webhooks.{index}.{key}");
            let url = webhook.url_secret(index).map(|secret| (at("url"), secret));
            [url, webhook.token_secret(index).map(|secret| (at("token"), secret))]
        });
        let access = &self.access;
        let single = [
            ("access.admin_token", access.admin_token_secret()),
            ("access.cache_salt_secret", access.salt_secret()),
            ("identities.secret", self.identities.hash_secret()),
            ("peer_exchange.key", self.peer_exchange.key_secret()),
            ("peer_exchange.password", self.peer_exchange.password_secret()),
        ];
        let single =
            single.into_iter().filter_map(|(path, secret)| Some((path.to_owned(), secret?)));
        backends.chain(discovery).chain(webhooks.flatten()).chain(single).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[test]
    fn the_list_of_configured_secrets_has_each_secret() {
        let text = "backends: [{ url: a:1, api_key: { env: A } }]\n\
                    discovery: [{ dns: 'a.example:1', api_key: { env: B } }]\n\
                    access: { admin_token: { env: C }, cache_salt_secret: { env: D } }\n\
                    webhooks: [{ url: { env: E } }]\n\
                    peer_exchange: { key: { env: F }, password: { env: G } }\n";
        let config: Config = serde_saphyr::from_str(text).unwrap();
        let mut listed: Vec<String> = config.secrets().into_iter().map(|(path, _)| path).collect();
        listed.sort();
        let expected = [
            "access.admin_token",
            "access.cache_salt_secret",
            "backends.0.api_key",
            "discovery.0.api_key",
            "peer_exchange.key",
            "peer_exchange.password",
            "webhooks.0.url",
        ];
        assert_eq!(listed, expected);
    }
}

//! The settings of the webhooks.

use crate::config::root::Config;
use crate::config::sections::secret::{SecretValue, UnreadableSecret};
use crate::config::sections::webhooks::{WebhookUrl, parse_url};
use tokenweir_webhooks::{RetryTimes, WebhookEndpoint, WebhookSettings};

/// Why a webhook cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhooksError {
    /// The URL or the token cannot be read.
    #[error(transparent)]
    Secret(#[from] UnreadableSecret),
    /// The secret is not a URL. The error does not contain the secret.
    #[error("the URL of webhooks[{0}] is not an http or https URL")]
    Url(usize),
}

impl Config {
    /// The settings of the webhooks. `host_name`: the name of this machine.
    pub fn webhook_settings(
        &self,
        host_name: &str,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<WebhookSettings, WebhooksError> {
        let port = self.admin.port();
        let scheme = if self.tls.admin { "https" } else { "http" };
        let admin_address = match self.admin.ip() {
            ip if ip.is_unspecified() => format!("{host_name}:{port}"),
            _ => self.admin.to_string(),
        };
        let mut endpoints = Vec::new();
        for (index, webhook) in self.webhooks.iter().enumerate() {
            let secret_url = webhook.url_secret(index).map(|secret| secret.resolve(&env));
            let secret_url = secret_url.transpose()?;
            let url = match (&webhook.url, &secret_url) {
                (WebhookUrl::Plain(url), _) => Some(url.as_str()),
                (_, secret) => secret.as_ref().and_then(|url| str::from_utf8(url.as_bytes()).ok()),
            };
            let parsed = url.and_then(|url| parse_url(url).ok());
            let (address, path) = parsed.ok_or(WebhooksError::Url(index))?;
            let token = webhook.token_secret(index).map(|secret| secret.resolve(&env));
            let authorization = token.transpose()?.map(SecretValue::into_bearer);
            endpoints.push(WebhookEndpoint { address, path, authorization });
        }
        Ok(WebhookSettings {
            endpoints,
            gateway: format!("{host_name}:{port}"),
            runbooks: format!("{scheme}://{admin_address}/runbooks"),
            retries: RetryTimes::default(),
        })
    }
}

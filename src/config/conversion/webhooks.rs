//! The settings of the webhooks.

use crate::config::options::webhooks::WebhooksError;
use crate::config::root::Config;
use tokenweir_settings::Environment;
use tokenweir_webhooks::{RetryTimes, WebhookSettings};

impl Config {
    /// The settings of the webhooks. `host_name`: the name of this machine.
    pub fn webhook_settings(
        &self,
        host_name: &str,
        env: impl Environment,
    ) -> Result<WebhookSettings, WebhooksError> {
        let port = self.admin.port();
        let scheme = if self.tls.admin { "https" } else { "http" };
        let admin_address = match self.admin.ip() {
            ip if ip.is_unspecified() => format!("{host_name}:{port}"),
            _ => self.admin.to_string(),
        };
        let webhooks = self.webhooks.iter().enumerate();
        let endpoints =
            webhooks.map(|(index, webhook)| webhook.endpoint(&format!("webhooks[{index}]"), &env));
        Ok(WebhookSettings {
            endpoints: endpoints.collect::<Result<_, _>>()?,
            gateway: format!("{host_name}:{port}"),
            runbooks: format!("{scheme}://{admin_address}/runbooks"),
            retries: RetryTimes::default(),
        })
    }
}

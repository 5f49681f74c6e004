//! The settings of the alerts that the gateway sends.

use crate::alertmanager::{AlertmanagerEndpoint, AlertmanagerSettings, SendIntervals};
use crate::config::root::Config;
use crate::config::sections::secret::{SecretValue, UnreadableSecret};

impl Config {
    /// The settings of the alerts that the gateway sends. `host_name`: the name of this machine.
    pub fn alertmanager_settings(
        &self,
        host_name: &str,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<AlertmanagerSettings, UnreadableSecret> {
        let port = self.admin.port();
        let scheme = if self.tls.admin { "https" } else { "http" };
        let admin_address = match self.admin.ip() {
            ip if ip.is_unspecified() => format!("{host_name}:{port}"),
            _ => self.admin.to_string(),
        };
        let mut endpoints = Vec::new();
        for (index, alertmanager) in self.alertmanagers.iter().enumerate() {
            // The rules have checked the URLs.
            let Ok((address, path)) = alertmanager.endpoint() else { continue };
            let token = alertmanager.token_secret(index).map(|secret| secret.resolve(&env));
            let default_page = || format!("{scheme}://{admin_address}/runbooks");
            endpoints.push(AlertmanagerEndpoint {
                address,
                path,
                authorization: token.transpose()?.map(SecretValue::into_bearer),
                runbooks: alertmanager.runbooks.clone().unwrap_or_else(default_page),
            });
        }
        let (instance, intervals) = (format!("{host_name}:{port}"), SendIntervals::default());
        Ok(AlertmanagerSettings { endpoints, instance, intervals })
    }
}

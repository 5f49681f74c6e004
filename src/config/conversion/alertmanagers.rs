//! The settings of the alerts that the gateway sends.

use crate::alertmanager::{AlertmanagerEndpoint, AlertmanagerSettings, SendIntervals};
use crate::config::root::Config;
use crate::config::sections::secret::{SecretValue, UnreadableSecret};
use tokenweir_net::tls::{Alpn, OutboundTls, TlsClientContext, TlsError};

/// Why the alerts cannot be sent to an Alertmanager.
#[derive(Debug, thiserror::Error)]
pub enum AlertmanagersError {
    /// The token cannot be read.
    #[error(transparent)]
    Secret(#[from] UnreadableSecret),
    /// A TLS file cannot be used.
    #[error("cannot use the TLS settings of alertmanagers[{index}]")]
    Tls {
        /// Position of the entry.
        index: usize,
        /// The reason.
        source: TlsError,
    },
}

impl Config {
    /// The settings of the alerts that the gateway sends. `host_name`: the name of this machine.
    pub fn alertmanager_settings(
        &self,
        host_name: &str,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<AlertmanagerSettings, AlertmanagersError> {
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
            let tls = alertmanager.tls.clone().unwrap_or_default();
            let context = TlsClientContext::new(&tls, Alpn::Http1)
                .map_err(|source| AlertmanagersError::Tls { index, source })?;
            let default_page = || format!("{scheme}://{admin_address}/runbooks");
            endpoints.push(AlertmanagerEndpoint {
                address,
                path,
                outbound: OutboundTls::new(context),
                authorization: token.transpose()?.map(SecretValue::into_bearer),
                runbooks: alertmanager.runbooks.clone().unwrap_or_else(default_page),
            });
        }
        let (instance, intervals) = (format!("{host_name}:{port}"), SendIntervals::default());
        Ok(AlertmanagerSettings { endpoints, instance, intervals })
    }
}

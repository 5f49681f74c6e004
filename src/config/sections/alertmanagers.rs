//! The configuration of the Alertmanagers that get the alerts of the gateway.

use super::secret::Secret;
use crate::config::violation::{RuleViolation, violation_at};
use http::uri::PathAndQuery;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokenweir_core::address::{BackendAddress, BackendAddressError};
use tokenweir_net::tls::TlsClientSettings;

/// An Alertmanager. It gets the verdicts and anomalies of the diagnosis that hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlertmanagerConfig {
    /// URL of the Alertmanager, with the path of `--web.route-prefix` if it has one. The gateway
    /// appends `/api/v2/alerts`.
    pub url: String,
    /// Bearer token. `None`: requests have no `Authorization` header.
    #[serde(default)]
    pub token: Option<Secret>,
    /// URL of the page of runbooks, to which alerts link. `None`: `/runbooks` of the admin listener.
    #[serde(default)]
    pub runbooks: Option<String>,
    /// TLS of the connections to the Alertmanager. `None`: the authorities of this machine are
    /// trusted.
    #[serde(default)]
    pub tls: Option<TlsClientSettings>,
}

/// Maximum number of Alertmanagers, because each has its own task and connection.
const MAX_ALERTMANAGERS: usize = 10;

impl AlertmanagerConfig {
    /// The address and the path of the API.
    pub fn endpoint(&self) -> Result<(BackendAddress, PathAndQuery), BackendAddressError> {
        let (address, prefix) = BackendAddress::split_path(&self.url);
        let path = format!("{}/api/v2/alerts", prefix.trim_end_matches('/'));
        let not_url = |_| BackendAddressError::NotUrl(self.url.clone());
        Ok((BackendAddress::parse(address)?, path.parse().map_err(not_url)?))
    }
}

/// Checks the URLs. Returns the first violation.
pub(crate) fn check(alertmanagers: &[AlertmanagerConfig]) -> Result<(), RuleViolation> {
    if alertmanagers.len() > MAX_ALERTMANAGERS {
        let problem = format!("at most {MAX_ALERTMANAGERS} Alertmanagers");
        return Err(violation_at("alertmanagers", problem));
    }
    let mut addresses = Vec::new();
    for (index, alertmanager) in alertmanagers.iter().enumerate() {
        let violation = |problem| violation_at(&format!("alertmanagers.{index}.url"), problem);
        let url = &alertmanager.url;
        let address = match alertmanager.endpoint() {
            // The other errors quote the URL, which may have a password.
            _ if url.contains('@') => {
                return Err(violation("write the token in `token`, not in the URL".to_owned()));
            }
            Ok(_) if url.contains('?') => {
                return Err(violation("leave out the query of the URL".to_owned()));
            }
            Ok((address, _)) => address,
            Err(error) => return Err(violation(error.to_string().replace("backend", "URL"))),
        };
        if addresses.contains(&address) {
            let problem = format!("{} is named twice", address.authority());
            return Err(violation(problem));
        }
        addresses.push(address);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Overrides};
    use std::path::Path;

    fn parse(alertmanagers: &str) -> Result<Config, String> {
        let text = format!("backends: [{{ url: a:1 }}]\nalertmanagers: {alertmanagers}\n");
        let loaded = Config::parse(&text, Path::new("gateway.yaml"), Overrides::default());
        loaded.map(|loaded| loaded.config).map_err(|error| error.to_string())
    }

    #[test]
    fn the_path_of_the_api_follows_the_path_of_the_url() {
        for (url, expected) in [
            ("http://am:9093", "http://am:9093/api/v2/alerts"),
            ("am:9093/", "http://am:9093/api/v2/alerts"),
            ("https://am/alerts/", "https://am/alerts/api/v2/alerts"),
        ] {
            let config = parse(&format!("[{{ url: \"{url}\" }}]")).unwrap();
            let (address, path) = config.alertmanagers[0].endpoint().unwrap();
            assert_eq!(address.uri(&path).to_string(), expected);
        }
    }

    #[test]
    fn mistakes_are_named_without_a_password() {
        for (alertmanagers, problem) in [
            ("[{ url: \"http://u:secret@am:9093\" }]", "write the token in `token`"),
            ("[{ url: \"ftp://am:9093\" }]", "must be http:// or https://"),
            ("[{ url: \"http://am:9093?a=b\" }]", "leave out the query"),
            ("[{ url: \"am:9093\" }, { url: \"http://am:9093/x\" }]", "am:9093 is named twice"),
            ("[{ url: \"am:9093\", token: abc }]", "do not write the secret here"),
        ] {
            let error = parse(alertmanagers).unwrap_err();
            assert!(error.contains(problem), "{alertmanagers}: {error}");
            assert!(!problem.contains("secret@") && !error.contains("u:secret"), "{error}");
        }
    }
}

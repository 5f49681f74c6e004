//! The configuration of the exchange with other gateways.

use super::secret::Secret;
use crate::config::violation::{RuleViolation, require, violation_at};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokenweir_peers::bus::BusSettings;

/// The exchange with other gateways before the same backends: the prompts that each sends to which
/// backend. Messages contain keyed hashes and numbers, never text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PeerExchangeConfig {
    /// URL of a Redis or Valkey server: `redis://HOST:PORT`, with TLS `rediss://HOST:PORT`. `None`:
    /// no exchange.
    pub url: Option<String>,
    /// User name for the server. `None`: its default user.
    pub username: Option<String>,
    /// Password for the server. `None`: the server needs none.
    pub password: Option<Secret>,
    /// The key that all gateways share, at least 32 characters. It encrypts the messages.
    pub key: Option<Secret>,
}

/// Checks the rules of `peer_exchange` and returns the first violation.
pub(in crate::config) fn check(config: &PeerExchangeConfig) -> Result<(), RuleViolation> {
    let Some(url) = &config.url else {
        let problem = "a key serves the exchange only: write the Redis or Valkey server of all \
                       gateways as `url`, or remove the key";
        return require(config.key.is_none(), "peer_exchange.key", problem);
    };
    if let Some(problem) = BusSettings::url_problem(url) {
        return Err(violation_at("peer_exchange.url", problem));
    }
    let problem = "an exchange needs a key, because every gateway trusts its messages: write the \
                   output of `openssl rand -hex 32` to a file that all gateways read";
    require(config.key.is_some(), "peer_exchange.key", problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_without_server_is_refused() {
        let config = serde_saphyr::from_str("key: { env: A }").unwrap();
        let problem = check(&config).unwrap_err().problem;
        assert!(problem.contains("write the Redis or Valkey server"), "{problem}");
        assert!(check(&PeerExchangeConfig::default()).is_ok());
    }
}

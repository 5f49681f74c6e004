//! The section `peer_exchange`: the exchange with other gateways before the same backends.

use crate::exchange::PeerExchange;
use crate::messages::bus::BusSettings;
use crate::messages::{ExchangeKey, KeyTooShort};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::settings;
use tokenweir_settings::{
    CheckResult, ConfigSection, ConfiguredSecret, Environment, ReloadClass, Secret, SecretList,
    UnreadableSecret, require, violation_at,
};

settings! {
    /// The exchange with other gateways before the same backends: the prompts that each sends to which
    /// backend. Messages contain keyed hashes and numbers, never text.
    #[derive(Default)]
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
}

/// Timeout of a connection attempt to the message bus, and of one message to it.
const BUS_TIMEOUT: Duration = Duration::from_secs(1);

impl<C> ConfigSection<C> for PeerExchangeConfig {
    type Values = Self;
    // The hashes of prompts in the prefix tables depend on the key.
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(exchange: &PeerExchangeConfig, _: &C) -> CheckResult {
        let Some(url) = &exchange.url else {
            let problem = "a key serves the exchange only: write the Redis or Valkey server of all \
                           gateways as `url`, or remove the key";
            require(exchange.key.is_none(), "peer_exchange.key", problem)?;
            let problem =
                "this is for the server of the exchange: write it as `url`, or remove this key";
            require(
                exchange.username.is_none(),
                "peer_exchange.username",
                problem,
            )?;
            return require(
                exchange.password.is_none(),
                "peer_exchange.password",
                problem,
            );
        };
        if let Some(problem) = BusSettings::url_problem(url) {
            return Err(violation_at("peer_exchange.url", problem));
        }
        let problem = "an exchange needs a key, because every gateway trusts its messages: write the \
                       output of `openssl rand -hex 32` to a file that all gateways read";
        require(exchange.key.is_some(), "peer_exchange.key", problem)
    }

    fn list_secrets<'a>(exchange: &'a PeerExchangeConfig, list: &mut SecretList<'a>) {
        list.add("peer_exchange.key", exchange.key_secret());
        list.add("peer_exchange.password", exchange.password_secret());
    }
}

/// Why the exchange with other gateways cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PeerExchangeError {
    /// The key or the password cannot be read.
    #[error(transparent)]
    Secret(#[from] UnreadableSecret),
    /// The key is too short.
    #[error("cannot use the key that the gateways share (peer_exchange.key)")]
    Key(#[from] KeyTooShort),
}

impl PeerExchangeConfig {
    fn key_secret(&self) -> Option<ConfiguredSecret<'_>> {
        ConfiguredSecret::new(
            "the key of the exchange (peer_exchange.key)",
            self.key.as_ref(),
        )
    }

    fn password_secret(&self) -> Option<ConfiguredSecret<'_>> {
        let purpose = "the password of the exchange (peer_exchange.password)";
        ConfiguredSecret::new(purpose, self.password.as_ref())
    }

    /// Starts the exchange with other gateways. `env` returns the value of an environment variable. `None`:
    /// no exchange is configured.
    pub fn start(
        &self,
        env: impl Environment,
    ) -> Result<Option<Arc<PeerExchange>>, PeerExchangeError> {
        let Some(url) = &self.url else {
            return Ok(None);
        };
        let Some(key) = self.key_secret() else {
            return Ok(None);
        };
        let key = ExchangeKey::new(key.resolve(&env)?.as_bytes())?;
        let password = ConfiguredSecret::resolve_any(self.password_secret(), env)?;
        let bus = BusSettings {
            url: url.to_owned(),
            username: self.username.clone(),
            password: password
                .map(|password| String::from_utf8_lossy(password.as_bytes()).into_owned()),
            channel: key.channel(),
            timeout: BUS_TIMEOUT,
        };
        Ok(Some(PeerExchange::new(bus, key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_without_server_is_refused() {
        let exchange: PeerExchangeConfig = serde_saphyr::from_str("key: { env: A }").unwrap();
        let problem = PeerExchangeConfig::check(&exchange, &())
            .unwrap_err()
            .problem;
        assert!(
            problem.contains("write the Redis or Valkey server"),
            "{problem}"
        );
        for useless in ["password: { env: A }", "username: a"] {
            let exchange: PeerExchangeConfig = serde_saphyr::from_str(useless).unwrap();
            let problem = PeerExchangeConfig::check(&exchange, &())
                .unwrap_err()
                .problem;
            assert!(problem.contains("write it as `url`"), "{problem}");
        }
        assert!(PeerExchangeConfig::check(&PeerExchangeConfig::default(), &()).is_ok());
    }
}

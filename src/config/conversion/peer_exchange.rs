//! Converts the configuration into the exchange with other gateways.

use crate::config::root::Config;
use crate::config::sections::secret::UnreadableSecret;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::backend::facets::exchange::{PeerExchange, PeerExchangeSettings};
use tokenweir_peers::bus::BusSettings;
use tokenweir_peers::{ExchangeKey, KeyTooShort};

/// Timeout of a connection attempt to the message bus, and of one message to it.
const BUS_TIMEOUT: Duration = Duration::from_secs(1);

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

impl Config {
    /// The exchange with other gateways. `env` returns the value of an environment variable. `None`: no
    /// exchange is configured.
    pub fn peer_exchange(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Arc<PeerExchange>>, PeerExchangeError> {
        let config = &self.peer_exchange;
        let Some(url) = &config.url else { return Ok(None) };
        let Some(key) = config.key_secret() else { return Ok(None) };
        let key = ExchangeKey::new(key.resolve(&env)?.as_bytes())?;
        let bus = self.peer_bus(url, &key, env)?;
        Ok(Some(PeerExchange::new(PeerExchangeSettings { bus, key })))
    }

    fn peer_bus(
        &self,
        url: &str,
        key: &ExchangeKey,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<BusSettings, PeerExchangeError> {
        let config = &self.peer_exchange;
        let password = config.password_secret().map(|secret| secret.resolve(env)).transpose()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(BusSettings {
            url: url.to_owned(),
            username: config.username.clone(),
            password: password.map(|password| text(password.as_bytes())),
            channel: key.channel(),
            timeout: BUS_TIMEOUT,
        })
    }
}

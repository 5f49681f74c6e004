//! Converts the configuration into the settings of the exchange with other gateways.

use crate::backend::peers::PeerExchangeSettings;
use crate::config::root::Config;
use crate::config::sections::secret::UnreadableSecret;
use tokenweir_peers::bus::BusSettings;
use tokenweir_peers::{ExchangeKey, KeyTooShort};

/// Why the exchange with other gateways cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PeerExchangeError {
    /// The key or the password cannot be read.
    #[error(transparent)]
    Secret(#[from] UnreadableSecret),
    /// The key is too short.
    #[error("cannot use the key of the exchange (peer_exchange.key)")]
    Key(#[from] KeyTooShort),
}

impl Config {
    /// The settings of the exchange. `None`: there is no exchange. `env` returns the value of an
    /// environment variable.
    pub fn peer_exchange_settings(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<PeerExchangeSettings>, PeerExchangeError> {
        let config = &self.peer_exchange;
        let (Some(url), Some(key)) = (&config.url, config.key_secret()) else { return Ok(None) };
        let password = config.password_secret().map(|secret| secret.resolve(&env)).transpose()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let bus = BusSettings {
            url: url.clone(),
            username: config.username.clone(),
            password: password.map(|password| text(password.as_bytes())),
            channel: config.channel.clone(),
            timeout: config.timeout,
        };
        let key = ExchangeKey::new(key.resolve(env)?.as_bytes())?;
        Ok(Some(PeerExchangeSettings { bus, key }))
    }
}

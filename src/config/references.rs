//! The values of other sections that the rules of a section read.

use super::backends::section::BackendConfig;
use super::root::Config;
use super::sections::clients::listeners::{ClientListener, ListenAddress};
use super::sections::clients::tiers::TiersConfig;
#[cfg(feature = "options")]
use tokenweir_payload_log::PayloadLogSettings;
use tokenweir_request::error::listed;
use tokenweir_request::slo::Objective;
use tokenweir_settings::{KnownBackends, KnownTenants};

impl KnownBackends for Config {
    fn unknown_backend(&self, name: &str) -> Option<String> {
        let is_complete = !self.backends.is_empty() && self.discovery.is_empty();
        let ids = || self.backends.iter().map(BackendConfig::id);
        if !is_complete || ids().any(|id| id.as_str() == name) {
            return None;
        }
        Some(format!(
            "unknown backend `{name}`; `backends` has {}",
            listed(ids())
        ))
    }
}

impl KnownTenants for Config {
    fn has_tenants(&self) -> bool {
        self.access.keys_file.is_some()
    }
}

impl ClientListener for Config {
    fn client_listener(&self) -> ListenAddress {
        self.listen
    }
}

impl AsRef<Vec<BackendConfig>> for Config {
    fn as_ref(&self) -> &Vec<BackendConfig> {
        &self.backends
    }
}

impl AsRef<TiersConfig> for Config {
    fn as_ref(&self) -> &TiersConfig {
        &self.tiers
    }
}

impl AsRef<Vec<Objective>> for Config {
    fn as_ref(&self) -> &Vec<Objective> {
        &self.slos
    }
}

#[cfg(feature = "options")]
impl AsRef<PayloadLogSettings> for Config {
    fn as_ref(&self) -> &PayloadLogSettings {
        &self.log.payloads
    }
}

//! Converts the configuration into the settings of other modules, and into backends, TLS contexts
//! and the access control.

mod access;
mod alertmanagers;
mod backends;
mod peer_exchange;
mod proxy;
mod secrets;
mod telemetry;

pub use alertmanagers::AlertmanagersError;
pub use backends::{BackendTlsContexts, backend_tls_contexts};
pub use peer_exchange::PeerExchangeError;
pub use proxy::ProxySettingsError;
pub use secrets::ConfiguredSecret;

//! Converts the configuration into the settings of other modules, and into backends, TLS contexts
//! and the access control.

mod access;
mod backends;
mod peer_exchange;
mod proxy;
mod secrets;
mod server;
mod telemetry;
mod webhooks;

pub use backends::{BackendTlsContexts, backend_tls_contexts};
pub use peer_exchange::PeerExchangeError;
pub use proxy::ProxySettingsError;
pub use secrets::ConfiguredSecret;
pub use webhooks::WebhooksError;

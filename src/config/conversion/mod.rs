//! Converts the configuration into the parts and the settings of the modules below it.

mod access;
mod backends;
mod proxy;
mod telemetry;

pub use backends::{BackendTlsContexts, backend_tls_contexts};
pub use proxy::ProxySettingsError;

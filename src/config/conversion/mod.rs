//! Converts the configuration into settings of other modules that several sections determine, and into backends and
//! TLS contexts.

mod backends;
mod proxy;
mod server;
mod telemetry;
mod tls_files;

pub use backends::{BackendTlsContexts, backend_tls_contexts};
pub use proxy::ProxySettingsError;
pub use tls_files::tls_file_problems;

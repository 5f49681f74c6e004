//! Converts the configuration into backends, TLS contexts, and settings of other modules that depend on several
//! sections.

mod backends;
mod proxy;
mod server;
mod telemetry;
mod tls_files;

pub use backends::{BackendTlsContexts, backend_tls_contexts};
pub use proxy::ProxySettingsError;
pub use tls_files::tls_file_problems;

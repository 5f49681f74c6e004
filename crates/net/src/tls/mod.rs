//! TLS of the connections from clients and to backends and collectors: rustls with the `ring`
//! provider, TLS 1.2 and 1.3 with the safe defaults of rustls. No setting weakens these defaults.
//!
//! ```text
//! files ─► FileBacked<T>           a value that is rebuilt when its files change
//!            ├ Acceptor            accepts connections of clients
//!            └ TlsClientContext    trusted authorities and client certificate of the gateway
//!                 ◄─ OutboundTls ◄─ Connector    one context per host, or the default
//! Credentials                      reloads all changed files every 10 s, and on request
//! ```

mod error;
mod expiry;
mod provider;
mod settings;
mod stream;

mod pem;

mod file_backed;

mod acceptor;
mod client_context;

mod connector;

mod credentials;

pub use acceptor::Acceptor;
pub use client_context::TlsClientContext;
#[cfg(feature = "testing")]
pub use connector::Dial;
pub use connector::{ConnectError, Connector, OutboundTls};
pub use credentials::{CertificateCounts, Credentials, TlsPeer};
pub use error::TlsError;
pub use provider::{Alpn, is_server_name};
pub use settings::{TlsClientSettings, TlsServerSettings};
pub use stream::MaybeTlsStream;
#[cfg(feature = "testing")]
pub use stream::SimulatedStream;

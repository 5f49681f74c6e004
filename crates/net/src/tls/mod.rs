//! TLS for clients, backends and collectors: rustls with the `ring` provider, TLS 1.2 and 1.3 with
//! the safe defaults of rustls. No setting weakens them.
//!
//! ```text
//! files ─► FileBacked<T>           built from files, rebuilt when they change; kept on error
//!            ├ Acceptor            accepts connections of clients
//!            └ TlsClientContext    trusted authorities and client certificate
//!                 ◄─ OutboundTls ◄─ Connector    one context per host, or the default
//! Credentials                      reloads all of them every 10 s, and on request
//! ```

mod error;
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
pub use connector::{ConnectError, Connector, OutboundTls};
pub use credentials::{CertificateCounts, Credentials, TlsPeer};
pub use error::TlsError;
pub use provider::{Alpn, is_server_name};
pub use settings::{TlsClientSettings, TlsServerSettings};
pub use stream::MaybeTlsStream;

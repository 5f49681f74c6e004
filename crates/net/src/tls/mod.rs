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

mod acceptor;
mod certificate;
mod client_context;
mod connector;
mod credentials;
mod file_backed;
mod pem;
mod settings;
mod stream;

pub use acceptor::Acceptor;
pub use client_context::TlsClientContext;
pub use connector::{ConnectError, Connector, OutboundTls};
pub use credentials::{CertificateCounts, Credentials, TlsPeer};
pub use settings::{TlsClientSettings, TlsServerSettings};
pub use stream::MaybeTlsStream;

use rustls::crypto::CryptoProvider;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

/// An invalid TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {cause}", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: std::io::Error,
    },
    /// A file lacks a required PEM item.
    #[error("{} has no {wanted} in PEM", path.display())]
    MissingPemItem {
        /// The file.
        path: PathBuf,
        /// The required item.
        wanted: &'static str,
    },
    /// A certificate and its key do not match, or are invalid.
    #[error("the certificate in {} is not usable: {cause}", path.display())]
    InvalidCertificate {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: rustls::Error,
    },
    /// Certificates of authorities are invalid.
    #[error("the certificate authorities in {} are not usable: {reason}", path.display())]
    InvalidAuthorities {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// This machine has no trusted certificate authorities.
    #[error("this machine trusts no certificate authority: set `ca` to a file with yours")]
    NoAuthorities,
    /// The text is not a valid server name.
    #[error("`{0}` is not a valid server name: use a host name or an IP address")]
    InvalidServerName(String),
    /// rustls rejects the configuration.
    #[error("TLS cannot be configured")]
    Configuration(#[from] rustls::Error),
}

/// The protocols that are negotiated by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/2 or HTTP/1.1. HTTP/2 is preferred.
    Any,
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only, for gRPC.
    Http2,
}

/// Whether the text is a valid server name: a host name or an IP address.
pub fn is_server_name(name: &str) -> bool {
    rustls::pki_types::ServerName::try_from(name).is_ok()
}

impl Alpn {
    fn protocol_ids(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match self {
            Self::Any => &[b"h2", b"http/1.1"],
            Self::Http1 => &[b"http/1.1"],
            Self::Http2 => &[b"h2"],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

fn crypto_provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    PROVIDER.clone()
}

//! TLS, towards clients, towards replicas and towards collectors: rustls with the `ring` provider,
//! TLS 1.2 and 1.3 with its safe defaults and no way to weaken them.
//!
//! ```text
//! files ─► Fresh<T>          made of files, made anew when they change; the old one stays on error
//!            ├ Acceptor      of connections of clients
//!            └ Identity      of connections to others ◄─ Connector ◄─ Outbound: whose for which host
//! Credentials                all of them: looked at every 10 s, or when somebody says so
//! ```

mod acceptor;
mod certificate;
mod connector;
mod credentials;
mod fresh;
mod identity;
mod pem;
mod settings;
mod stream;

pub use acceptor::Acceptor;
pub use connector::{ConnectError, Connector, Outbound};
pub use credentials::{Counts, Credentials, Side};
pub use identity::Identity;
pub use settings::{ClientSettings, ServerSettings};
pub use stream::Stream;

use rustls::crypto::CryptoProvider;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// A file does not have what it should.
    #[error("{} has no {wanted} in PEM", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What it should have.
        wanted: &'static str,
    },
    /// A certificate and a key do not belong together, or are not understood.
    #[error("the certificate in {} cannot be used: {cause}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: rustls::Error,
    },
    /// Certificates of authorities are not understood.
    #[error("the authorities in {} cannot be used: {reason}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// This machine has no certificates of authorities.
    #[error("this machine trusts no authority: name a file with the certificate of yours (`ca`)")]
    NoAuthorities,
    /// It is not the name of a server.
    #[error("`{0}` is not the name of a server")]
    Name(String),
    /// rustls refuses.
    #[error("TLS cannot be set up")]
    Setup(#[from] rustls::Error),
}

/// What applications speak inside of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/2 or HTTP/1.1, as the other side prefers.
    Any,
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only, for gRPC.
    Http2,
}

/// Whether it can be the name in a certificate: a host name or an IP address.
pub fn is_server_name(name: &str) -> bool {
    rustls::pki_types::ServerName::try_from(name).is_ok()
}

impl Alpn {
    fn protocols(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match self {
            Self::Any => &[b"h2", b"http/1.1"],
            Self::Http1 => &[b"http/1.1"],
            Self::Http2 => &[b"h2"],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    PROVIDER.clone()
}

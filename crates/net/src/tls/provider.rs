//! The cryptography provider, server names and the protocols that ALPN negotiates.

use std::sync::{Arc, LazyLock};
use tokio_rustls::rustls::crypto::CryptoProvider;

/// The application protocols that a TLS connection offers or accepts by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    /// The connection uses HTTP/2 or HTTP/1.1, with a preference for HTTP/2.
    Any,
    /// The connection uses HTTP/1.1 only.
    Http1,
    /// The connection uses HTTP/2 only, for gRPC.
    Http2,
}

/// Whether the text is a valid server name: a host name or an IP address.
pub fn is_server_name(name: &str) -> bool {
    tokio_rustls::rustls::pki_types::ServerName::try_from(name).is_ok()
}

impl Alpn {
    /// The ALPN protocol ids, in order of preference.
    pub(super) fn protocol_ids(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match self {
            Self::Any => &[b"h2", b"http/1.1"],
            Self::Http1 => &[b"http/1.1"],
            Self::Http2 => &[b"h2"],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

/// The cryptography provider that all TLS connections share.
pub(super) fn crypto_provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(tokio_rustls::rustls::crypto::ring::default_provider()));
    PROVIDER.clone()
}

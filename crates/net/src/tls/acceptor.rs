//! Accepts TLS connections on the client listener and the admin listener.

use super::error::TlsError;
use super::file_backed::{BuiltConfig, FileBacked};
use super::pem::{PemFile, earliest_expiry};
use super::provider::{Alpn, crypto_provider};
use super::settings::TlsServerSettings;
use super::stream::MaybeTlsStream;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::{TlsAcceptor, TlsStream};

/// Accepts TLS connections. Clones share the certificate. The certificate is reloaded when its files change.
#[derive(Clone)]
pub struct Acceptor(pub(super) Arc<FileBacked<ServerConfig>>);

impl Acceptor {
    /// Creates the acceptor of the client listener from the files of the configuration. `None`: no certificate
    /// or no key is configured, so the listener does not use TLS.
    pub fn for_client_listener(settings: &TlsServerSettings) -> Result<Option<Self>, TlsError> {
        Self::new(settings, settings.client_ca.clone())
    }

    /// Creates the acceptor of the admin listener, which does not request client certificates.
    /// `None`: TLS is not configured, or not enabled for the admin listener.
    pub fn for_admin_listener(settings: &TlsServerSettings) -> Result<Option<Self>, TlsError> {
        if settings.admin {
            Self::new(settings, None)
        } else {
            Ok(None)
        }
    }

    fn new(
        settings: &TlsServerSettings,
        client_ca: Option<PathBuf>,
    ) -> Result<Option<Self>, TlsError> {
        let (Some(cert), Some(key)) = (settings.cert.clone(), settings.key.clone()) else {
            return Ok(None);
        };
        let files = [cert, key].into_iter().chain(client_ca).collect();
        Ok(Some(Self(Arc::new(FileBacked::new(
            files,
            build_server_config,
        )?))))
    }

    /// Performs the TLS handshake on an accepted TCP connection. Fails if it takes longer than `timeout`.
    pub async fn accept(&self, stream: TcpStream, timeout: Duration) -> io::Result<MaybeTlsStream> {
        let accepting = TlsAcceptor::from(self.0.get()).accept(stream);
        let accepted = tokio::time::timeout(timeout, accepting).await;
        let accepted = accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        Ok(MaybeTlsStream::Tls(Box::new(TlsStream::Server(accepted))))
    }
}

/// Builds the rustls configuration from the files: the certificate, the key and, if clients must
/// present certificates, the authorities of client certificates.
fn build_server_config(files: &[PemFile]) -> Result<BuiltConfig<ServerConfig>, TlsError> {
    let [cert, key, client_ca @ ..] = files else {
        return Err(TlsError::NoAuthorities);
    };
    let chain = cert.certificates()?;
    let expires_at = earliest_expiry(&chain);
    let builder = ServerConfig::builder_with_provider(crypto_provider())
        .with_safe_default_protocol_versions()?;
    let builder = match client_ca.first() {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let roots = Arc::new(ca.root_cert_store()?);
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots, crypto_provider()).build();
            let to_error = |error: tokio_rustls::rustls::server::VerifierBuilderError| {
                TlsError::InvalidAuthorities {
                    path: ca.path(),
                    reason: error.to_string(),
                }
            };
            builder.with_client_cert_verifier(verifier.map_err(to_error)?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key.private_key()?)
        .map_err(|cause| TlsError::InvalidCertificate {
            path: cert.path(),
            cause,
        })?;
    config.alpn_protocols = Alpn::Any.protocol_ids();
    Ok(BuiltConfig {
        value: Arc::new(config),
        expires_at,
    })
}

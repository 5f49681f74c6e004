//! The gateway's side of connections of clients.

use super::fresh::{Fresh, Made, Reload};
use super::pem::Pem;
use super::{Alpn, ServerSettings, Stream, TlsError, certificate, provider};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsStream};

/// Accepts TLS connections. Clones share their certificate.
#[derive(Clone)]
pub struct Acceptor(Arc<Fresh<ServerConfig>>);

impl Acceptor {
    /// The one for the clients' port. `None`: it has no TLS.
    pub fn for_clients(settings: &ServerSettings) -> Result<Option<Self>, TlsError> {
        Self::new(settings, settings.client_ca.clone())
    }

    /// The one for the operators' port.
    pub fn for_operators(settings: &ServerSettings) -> Result<Option<Self>, TlsError> {
        if settings.admin { Self::new(settings, None) } else { Ok(None) }
    }

    fn new(
        settings: &ServerSettings,
        client_ca: Option<PathBuf>,
    ) -> Result<Option<Self>, TlsError> {
        let (Some(cert), Some(key)) = (settings.cert.clone(), settings.key.clone()) else {
            return Ok(None);
        };
        let files = [cert, key].into_iter().chain(client_ca).collect();
        Ok(Some(Self(Arc::new(Fresh::new(files, make)?))))
    }

    /// Shakes hands. It takes as long as the client does.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let accepted = TlsAcceptor::from(self.0.get()).accept(stream).await?;
        Ok(Stream::Tls(Box::new(TlsStream::Server(accepted))))
    }

    pub(super) fn reloading(&self) -> Arc<dyn Reload> {
        self.0.clone()
    }
}

/// Of the certificate, the key and, if clients must have one too, their authorities.
fn make(files: &[Pem]) -> Result<Made<ServerConfig>, TlsError> {
    let [cert, key, client_ca @ ..] = files else { return Err(TlsError::NoAuthorities) };
    let chain = cert.certificates()?;
    let expires = certificate::expiry(&chain);
    let builder =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match client_ca.first() {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let roots = Arc::new(ca.authorities()?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
            let unfit = |error: rustls::server::VerifierBuilderError| TlsError::Authorities {
                path: ca.path(),
                reason: error.to_string(),
            };
            builder.with_client_cert_verifier(verifier.map_err(unfit)?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key.key()?)
        .map_err(|cause| TlsError::Certificate { path: cert.path(), cause })?;
    config.alpn_protocols = Alpn::Any.protocols();
    Ok(Made { value: Arc::new(config), expires })
}

//! Certificates that the tests generate, and TLS clients and servers that use only rustls.

use super::process::folder;
use rcgen::{CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key in PEM.
pub(crate) struct Pair {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        // Each authority has its own name. With equal names, a client could confuse two authorities.
        let name = format!("authority {}", NUMBER.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// The certificate of the authority in PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for the host `name`. It is valid until the end of the year `until`.
    pub(crate) fn signs(&self, name: &str, until: i32) -> Pair {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 12, 31);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Pair {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Pair {
    fn parsed(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_slice_iter(self.cert.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        (chain.map(Result::unwrap).collect(), key)
    }

    /// The certificate in DER form.
    pub(crate) fn der(&self) -> Vec<u8> {
        self.parsed().0[0].to_vec()
    }
}

/// A folder with the certificate files of one test.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new(test: &str) -> Self {
        Self(folder(&format!("tls-{test}")))
    }

    /// Writes a file atomically and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, new) = (self.0.join(name), self.0.join(format!("{name}.new")));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path
    }
}

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap())
        .unwrap();
    Arc::new(roots)
}

/// Starts a TLS server that decrypts connections and forwards their bytes to the plain TCP port `to`. If
/// `clients` is given, a client must present a certificate of that authority.
pub(crate) async fn start_tls_terminator(
    to: SocketAddr,
    pair: &Pair,
    clients: Option<&Authority>,
    alpn: &[&str],
) -> SocketAddr {
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots(authority), provider).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        }
    };
    let (chain, key) = pair.parsed();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client_stream) = acceptor.accept(stream).await else {
                    return;
                };
                let mut upstream = TcpStream::connect(to).await.unwrap();
                let _ = copy_bidirectional(&mut client_stream, &mut upstream).await;
            });
        }
    });
    addr
}

/// Builds a TLS client that trusts `authority`. `own` is its client certificate, if it has one.
pub(crate) fn client(
    authority: &Authority,
    own: Option<&Pair>,
    alpn: &[&str],
    versions: &[&'static tokio_rustls::rustls::SupportedProtocolVersion],
) -> TlsConnector {
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots(authority));
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let (chain, key) = pair.parsed();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

/// Connects to an address and makes a TLS handshake that expects a certificate for `name`.
pub(crate) async fn connect(
    client: &TlsConnector,
    to: SocketAddr,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(to).await?;
    client
        .connect(ServerName::try_from(name.to_owned()).unwrap(), stream)
        .await
}

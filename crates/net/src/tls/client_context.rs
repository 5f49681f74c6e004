//! The TLS context of outbound connections: trusted certificate authorities, client certificate and
//! expected server name.

use super::error::TlsError;
use super::file_backed::{BuiltConfig, FileBacked, Reloadable};
use super::pem::{PemFile, earliest_expiry};
use super::provider::{Alpn, crypto_provider};
use super::settings::TlsClientSettings;
use std::sync::{Arc, OnceLock};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The trusted authorities, the client certificate and the expected server name of outbound
/// connections.
pub struct TlsClientContext {
    alpn: Alpn,
    /// The configuration that is built from files. Without configured files, it stays empty until the first
    /// connection, because loading the authorities of this machine is slow.
    config: OnceLock<Arc<FileBacked<ClientConfig>>>,
    /// The name that the server certificate must have. `None`: the host of the URL.
    pub(super) server_name: Option<ServerName<'static>>,
}

impl TlsClientContext {
    /// Creates a context that trusts the authorities of this machine and has no client certificate.
    pub fn with_native_roots(alpn: Alpn) -> Self {
        Self {
            alpn,
            config: OnceLock::new(),
            server_name: None,
        }
    }

    /// Creates a context from the configuration. Loads the configured files.
    pub fn new(settings: &TlsClientSettings, alpn: Alpn) -> Result<Self, TlsError> {
        let name = settings.server_name.clone().map(|name| {
            ServerName::try_from(name.clone()).map_err(|_| TlsError::InvalidServerName(name))
        });
        let context = Self {
            server_name: name.transpose()?,
            ..Self::with_native_roots(alpn)
        };
        if settings.ca.is_some() || settings.client_cert.is_some() {
            // `set` fails only for a field that is not empty, and the context is new.
            let _ = context
                .config
                .set(Arc::new(load_client_config(settings, alpn)?));
        }
        Ok(context)
    }

    /// The current rustls configuration for a new connection. Loads the authorities of this machine
    /// if no file is configured and this is the first connection.
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        if let Some(config) = self.config.get() {
            return Ok(config.get());
        }
        let loaded = Arc::new(load_client_config(
            &TlsClientSettings::default(),
            self.alpn,
        )?);
        Ok(self.config.get_or_init(|| loaded).get())
    }

    /// The TLS configuration of this context, which is reloaded when its files change. `None`: it is not loaded
    /// yet.
    pub(super) fn reloadable(&self) -> Option<Arc<dyn Reloadable>> {
        self.config
            .get()
            .map(|config| config.clone() as Arc<dyn Reloadable>)
    }
}

fn load_client_config(
    settings: &TlsClientSettings,
    alpn: Alpn,
) -> Result<FileBacked<ClientConfig>, TlsError> {
    let TlsClientSettings {
        ca,
        client_cert,
        client_key,
        ..
    } = settings.clone();
    let has_ca = ca.is_some();
    let files = [ca, client_cert, client_key]
        .into_iter()
        .flatten()
        .collect();
    FileBacked::new(files, move |files| build_client_config(files, has_ca, alpn))
}

/// Builds the rustls configuration from PEM files. With `has_ca`, the first file contains the trusted
/// certificate authorities. Without it, the authorities of this machine are trusted. A client certificate and
/// its key can follow.
fn build_client_config(
    files: &[PemFile],
    has_ca: bool,
    alpn: Alpn,
) -> Result<BuiltConfig<ClientConfig>, TlsError> {
    let (ca, client_files) = files.split_at(usize::from(has_ca).min(files.len()));
    let roots = match ca.first() {
        Some(ca) => ca.root_cert_store()?,
        None => native_roots()?,
    };
    let builder = ClientConfig::builder_with_provider(crypto_provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let (mut config, expires_at) = match client_files {
        [cert, key] => {
            let chain = cert.certificates()?;
            let expires_at = earliest_expiry(&chain);
            let config = builder.with_client_auth_cert(chain, key.private_key()?);
            let to_error = |cause| TlsError::InvalidCertificate {
                path: cert.path(),
                cause,
            };
            (config.map_err(to_error)?, expires_at)
        }
        _ => (builder.with_no_client_auth(), None),
    };
    config.alpn_protocols = alpn.protocol_ids();
    Ok(BuiltConfig {
        value: Arc::new(config),
        expires_at,
    })
}

/// The trusted certificate authorities of this machine. Invalid certificates are skipped. Fails if
/// no certificate is valid.
fn native_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        Err(TlsError::NoAuthorities)
    } else {
        Ok(roots)
    }
}

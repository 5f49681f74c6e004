//! The gateway's side of connections to others: whom it believes, and who it is.

use super::fresh::{Fresh, Made, Reload};
use super::pem::Pem;
use super::{Alpn, ClientSettings, TlsError, certificate, provider};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::sync::{Arc, OnceLock};

/// Whom the gateway believes, and who it is.
pub struct Identity {
    alpn: Alpn,
    /// `None` until somebody needs it: the authorities of this machine are many.
    config: OnceLock<Arc<Fresh<ClientConfig>>>,
    server_name: Option<ServerName<'static>>,
}

impl Identity {
    /// Believes the authorities of this machine, and is nobody.
    pub fn of_machine(alpn: Alpn) -> Self {
        Self { alpn, config: OnceLock::new(), server_name: None }
    }

    /// The one that is configured.
    pub fn new(settings: &ClientSettings, alpn: Alpn) -> Result<Self, TlsError> {
        let name = settings
            .server_name
            .clone()
            .map(|name| ServerName::try_from(name.clone()).map_err(|_| TlsError::Name(name)));
        let identity = Self { server_name: name.transpose()?, ..Self::of_machine(alpn) };
        if settings.ca.is_some() || settings.client_cert.is_some() {
            // A fresh cell is empty.
            let _ = identity.config.set(Arc::new(fresh(settings, alpn)?));
        }
        Ok(identity)
    }

    /// What a connection begins with.
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        if let Some(config) = self.config.get() {
            return Ok(config.get());
        }
        let made = Arc::new(fresh(&ClientSettings::default(), self.alpn)?);
        Ok(self.config.get_or_init(|| made).get())
    }

    /// The name that the server must prove, if it is not that of its URL.
    pub(super) fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }

    pub(super) fn reloading(&self) -> Option<Arc<dyn Reload>> {
        self.config.get().map(|config| config.clone() as Arc<dyn Reload>)
    }
}

fn fresh(settings: &ClientSettings, alpn: Alpn) -> Result<Fresh<ClientConfig>, TlsError> {
    let ClientSettings { ca, client_cert, client_key, .. } = settings.clone();
    let has_ca = ca.is_some();
    let files = [ca, client_cert, client_key].into_iter().flatten().collect();
    Fresh::new(files, move |files| make(files, has_ca, alpn))
}

/// Of the authorities, if there is a file of them, and of a certificate and its key, if it has one.
fn make(files: &[Pem], has_ca: bool, alpn: Alpn) -> Result<Made<ClientConfig>, TlsError> {
    let (ca, own) = files.split_at(usize::from(has_ca).min(files.len()));
    let roots = match ca.first() {
        Some(ca) => ca.authorities()?,
        None => machine()?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let (mut config, expires) = match own {
        [cert, key] => {
            let chain = cert.certificates()?;
            let expires = certificate::expiry(&chain);
            let config = builder.with_client_auth_cert(chain, key.key()?);
            let unfit = |cause| TlsError::Certificate { path: cert.path(), cause };
            (config.map_err(unfit)?, expires)
        }
        _ => (builder.with_no_client_auth(), None),
    };
    config.alpn_protocols = alpn.protocols();
    Ok(Made { value: Arc::new(config), expires })
}

/// The authorities of this machine. Some that are not understood do not matter.
fn machine() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 { Err(TlsError::NoAuthorities) } else { Ok(roots) }
}

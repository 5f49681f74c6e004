//! The TLS settings of the listeners.

use std::sync::Arc;
use tokenweir_net::tls::{Acceptor, Credentials, TlsError, TlsServerSettings};

/// The TLS settings of the client listener and the admin listener.
#[derive(Default)]
pub struct ServerTls {
    /// The TLS acceptor of the client listener. `None`: plain TCP.
    pub client_acceptor: Option<Acceptor>,
    /// The TLS acceptor of the admin listener. `None`: plain TCP.
    pub admin_acceptor: Option<Acceptor>,
    /// All certificates, private keys and certificate authorities that come from files, which are read again
    /// after a change.
    pub credentials: Arc<Credentials>,
}

impl ServerTls {
    /// The TLS acceptors of both listeners.
    pub fn new(settings: &TlsServerSettings) -> Result<Self, TlsError> {
        let credentials = Arc::new(Credentials::default());
        let client_acceptor = Acceptor::for_client_listener(settings)?;
        let admin_acceptor = Acceptor::for_admin_listener(settings)?;
        for acceptor in [&client_acceptor, &admin_acceptor].into_iter().flatten() {
            credentials.register_acceptor(acceptor);
        }
        Ok(Self {
            client_acceptor,
            admin_acceptor,
            credentials,
        })
    }
}

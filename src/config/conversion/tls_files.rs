//! The TLS files that a configuration names.

use crate::config::root::Config;
use tokenweir_net::tls::{Acceptor, Alpn, TlsClientContext, TlsClientSettings, TlsError};

/// The problems with TLS files on this machine, each with the path of its section.
pub fn tls_file_problems(config: &Config) -> Vec<(String, TlsError)> {
    let mut found = Vec::new();
    if let Err(error) = Acceptor::for_client_listener(&config.tls) {
        found.push(("tls".to_owned(), error));
    }
    let client_error = |tls: &TlsClientSettings| TlsClientContext::new(tls, Alpn::Http1).err();
    if let Some(error) = client_error(&config.backend_tls) {
        found.push(("backend_tls".to_owned(), error));
    }
    for (index, backend) in config.backends.iter().enumerate() {
        if let Some(error) = backend.tls.as_ref().and_then(client_error) {
            found.push((format!("backends.{index}.tls"), error));
        }
    }
    found
}

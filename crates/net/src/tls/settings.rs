//! The TLS configuration. It contains paths of files, never their content.

use std::path::PathBuf;
use tokenweir_protocol::settings;

settings! {
    /// TLS of the client listener and the admin listener.
    #[derive(Default, Eq)]
    pub struct TlsServerSettings {
        /// PEM file with the server certificate and its intermediate certificates. `None`: no TLS.
        pub cert: Option<PathBuf>,
        /// PEM file with the private key of the certificate.
        pub key: Option<PathBuf>,
        /// PEM file with the certificate authorities of client certificates. If set, clients must
        /// present certificates.
        pub client_ca: Option<PathBuf>,
        /// Whether the admin listener also uses TLS, with the same certificate and without client
        /// certificates.
        pub admin: bool,
    }
}

settings! {
    /// TLS of connections to backends or collectors.
    #[derive(Default, Eq)]
    pub struct TlsClientSettings {
        /// PEM file with the trusted certificate authorities. `None`: the authorities of this machine.
        pub ca: Option<PathBuf>,
        /// PEM file with the client certificate of the gateway and its intermediate certificates.
        pub client_cert: Option<PathBuf>,
        /// PEM file with the private key of the client certificate.
        pub client_key: Option<PathBuf>,
        /// The name that the server certificate must have. `None`: the host of the URL.
        pub server_name: Option<String>,
    }
}

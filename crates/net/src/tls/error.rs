//! The errors of an invalid TLS configuration.

use std::path::PathBuf;

/// Why a TLS configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or key file cannot be read.
    #[error("{} cannot be read: {cause}", path.display())]
    ReadFile {
        /// The file that cannot be read.
        path: PathBuf,
        /// Why the file cannot be read.
        cause: std::io::Error,
    },
    /// A PEM file is larger than the maximum size.
    #[error("the PEM file {} is larger than {limit} bytes", path.display())]
    FileTooLarge {
        /// The PEM file that is too large.
        path: PathBuf,
        /// Maximum size of a PEM file, in bytes.
        limit: u64,
    },
    /// A file contains no valid PEM item of the required kind.
    #[error("{} has no valid {wanted} in PEM format", path.display())]
    MissingPemItem {
        /// The file that lacks the item.
        path: PathBuf,
        /// The kind of the required item, such as `private key`.
        wanted: &'static str,
    },
    /// A certificate and its private key do not match, or one of the two is invalid.
    #[error("the certificate in {} is not usable: {cause}", path.display())]
    InvalidCertificate {
        /// The file of the certificate.
        path: PathBuf,
        /// The error of rustls, which states what does not fit.
        cause: tokio_rustls::rustls::Error,
    },
    /// The file of certificate authorities contains an invalid certificate.
    #[error("the certificate authorities in {} are not usable: {reason}", path.display())]
    InvalidAuthorities {
        /// The file of certificate authorities.
        path: PathBuf,
        /// The error of rustls as text.
        reason: String,
    },
    /// The certificate store of this machine has no valid certificate authority.
    #[error("this machine trusts no certificate authority: set `ca` to a PEM file of authorities")]
    NoAuthorities,
    /// The text is not a valid server name, which is a host name or an IP address.
    #[error("`{0}` is not a valid server name: use a host name or an IP address")]
    InvalidServerName(String),
    /// rustls rejects the combination of settings.
    #[error("the TLS library rejects the configured certificates, keys or protocol versions")]
    Configuration(#[from] tokio_rustls::rustls::Error),
}

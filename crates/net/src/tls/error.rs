//! The error of an invalid TLS configuration.

use std::path::PathBuf;

/// An invalid TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {cause}", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: std::io::Error,
    },
    /// A file is larger than any usable PEM file.
    #[error("{} is larger than {limit} bytes", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Largest size in bytes.
        limit: u64,
    },
    /// A file lacks a required PEM item.
    #[error("{} has no {wanted} in PEM", path.display())]
    MissingPemItem {
        /// The file.
        path: PathBuf,
        /// The required item.
        wanted: &'static str,
    },
    /// A certificate and its key do not match, or are invalid.
    #[error("the certificate in {} is not usable: {cause}", path.display())]
    InvalidCertificate {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: rustls::Error,
    },
    /// Certificates of authorities are invalid.
    #[error("the certificate authorities in {} are not usable: {reason}", path.display())]
    InvalidAuthorities {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// This machine has no trusted certificate authorities.
    #[error("this machine trusts no certificate authority: set `ca` to a file with yours")]
    NoAuthorities,
    /// The text is not a valid server name.
    #[error("`{0}` is not a valid server name: use a host name or an IP address")]
    InvalidServerName(String),
    /// rustls rejects the configuration.
    #[error("TLS cannot be configured")]
    Configuration(#[from] rustls::Error),
}

//! Reads certificates and private keys from PEM files.

use super::error::TlsError;
use super::expiry;
use crate::file_watcher;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Path and content of a PEM file.
pub(super) struct PemFile {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// Maximum size of a PEM file, in bytes: about four times the CA bundle of a Linux system.
const MAX_PEM_FILE_BYTES: u64 = 1 << 20;

impl PemFile {
    /// Reads a file. Fails if the file is larger than [`MAX_PEM_FILE_BYTES`], because a partial read would
    /// ignore certificates.
    pub(super) fn read(path: &Path) -> Result<Self, TlsError> {
        let mut bytes = Vec::new();
        let limit = MAX_PEM_FILE_BYTES + 1;
        let result = file_watcher::open_regular(path)
            .and_then(|file| file.take(limit).read_to_end(&mut bytes));
        match result {
            Ok(length) if length as u64 == limit => Err(TlsError::FileTooLarge {
                path: path.to_owned(),
                limit: MAX_PEM_FILE_BYTES,
            }),
            Ok(_) => Ok(Self {
                path: path.to_owned(),
                bytes,
            }),
            Err(cause) => Err(TlsError::ReadFile {
                path: path.to_owned(),
                cause,
            }),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// The certificates of the file. Fails if the file contains no certificate or an invalid one.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        let certificates = certificates
            .ok()
            .filter(|certificates| !certificates.is_empty());
        certificates.ok_or_else(|| self.missing("certificate"))
    }

    /// The first private key of the file. Fails if the file contains no private key.
    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|_| self.missing("private key"))
    }

    fn missing(&self, wanted: &'static str) -> TlsError {
        TlsError::MissingPemItem {
            path: self.path(),
            wanted,
        }
    }

    /// The certificates of the file as trusted authorities.
    pub(super) fn root_cert_store(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots
                .add(certificate)
                .map_err(|error| TlsError::InvalidAuthorities {
                    path: self.path(),
                    reason: error.to_string(),
                })?;
        }
        Ok(roots)
    }
}

/// The earliest expiry of the certificates of a chain. Certificates that cannot be parsed do not count. `None`:
/// no certificate could be parsed.
pub(super) fn earliest_expiry(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    chain
        .iter()
        .filter_map(|certificate| expiry::not_after(certificate))
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempFolder;

    #[test]
    fn a_file_above_the_limit_is_an_error() {
        let folder = TempFolder::new("pem");
        for (length, is_read) in [(MAX_PEM_FILE_BYTES, true), (MAX_PEM_FILE_BYTES + 1, false)] {
            let path = folder.write("pem", &"#".repeat(length as usize));
            match PemFile::read(&path) {
                Ok(file) => assert_eq!((file.bytes.len() as u64, true), (length, is_read)),
                Err(error) => assert!(
                    !is_read && error.to_string().ends_with("is larger than 1048576 bytes"),
                    "{error}"
                ),
            }
        }
    }
}

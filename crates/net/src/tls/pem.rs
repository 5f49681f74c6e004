//! Files in PEM, and what is in them.

use super::TlsError;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The bytes of a file.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pem {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// Longest file, in bytes: the authorities of a whole system are a quarter of it.
const MAX_FILE: u64 = 1 << 20;

impl Pem {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self, TlsError> {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(Self { path: path.to_owned(), bytes }),
            Err(cause) => Err(TlsError::Read { path: path.to_owned(), cause }),
        }
    }

    /// Where it was read.
    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Its certificates, at least one.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let wanted = "certificate";
        let missing = || TlsError::Missing { path: self.path(), wanted };
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            _ => Err(missing()),
        }
    }

    /// Its first private key.
    pub(super) fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.bytes)
            .map_err(|_| TlsError::Missing { path: self.path(), wanted: "private key" })
    }

    /// Its certificates as authorities.
    pub(super) fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| TlsError::Authorities {
                path: self.path(),
                reason: error.to_string(),
            })?;
        }
        Ok(roots)
    }
}

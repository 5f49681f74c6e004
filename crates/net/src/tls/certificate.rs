//! Reads the expiry of certificates.

use rustls::pki_types::CertificateDer;
use std::time::{Duration, SystemTime};
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// The earliest expiry in a chain. Certificates that cannot be parsed are skipped. `None`: no
/// expiry could be read.
pub(super) fn earliest_expiry(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let expiries = chain.iter().filter_map(|certificate| {
        let certificate = Certificate::from_der(certificate).ok()?;
        Some(certificate.tbs_certificate.validity.not_after.to_unix_duration())
    });
    expiries.min().map(|since_epoch: Duration| SystemTime::UNIX_EPOCH + since_epoch)
}

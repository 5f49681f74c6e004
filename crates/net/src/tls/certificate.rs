//! When a certificate ends.

use rustls::pki_types::CertificateDer;
use std::time::{Duration, SystemTime};
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// When the first of a chain ends. `None` if that cannot be read; whoever checks it decides then.
pub(super) fn expiry(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let ends = chain.iter().filter_map(|certificate| {
        let certificate = Certificate::from_der(certificate).ok()?;
        Some(certificate.tbs_certificate.validity.not_after.to_unix_duration())
    });
    ends.min().map(|since_epoch: Duration| SystemTime::UNIX_EPOCH + since_epoch)
}

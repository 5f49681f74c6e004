//! The section `backend_tls`, and the rules of the TLS settings of one backend.

use std::path::PathBuf;
use tokenweir_net::tls::{TlsClientSettings, is_server_name};
use tokenweir_settings::{CheckResult, ConfigSection, ReloadClass, violation_at, violation_of};

/// Values, rules and reload class of the section `backend_tls`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = TlsClientSettings;
    // Changed files of this section are reloaded separately.
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(tls: &TlsClientSettings, _: &C) -> CheckResult {
        check("backend_tls", tls)
    }
}

pub(super) fn check(path: &str, tls: &TlsClientSettings) -> CheckResult {
    CertificateFiles {
        section: path,
        cert_key: "client_cert",
        cert: tls.client_cert.as_ref(),
        private_key_key: "client_key",
        private_key: tls.client_key.as_ref(),
    }
    .check()?;
    match &tls.server_name {
        Some(name) if !is_server_name(name) => Err(violation_at(
            &format!("{path}.server_name"),
            format!("`{name}` is not a valid server name"),
        )),
        _ => Ok(()),
    }
}

/// The files of a certificate and its private key, with the configuration key of each in `section`.
pub(crate) struct CertificateFiles<'a> {
    pub(crate) section: &'a str,
    pub(crate) cert_key: &'a str,
    pub(crate) cert: Option<&'a PathBuf>,
    pub(crate) private_key_key: &'a str,
    pub(crate) private_key: Option<&'a PathBuf>,
}

impl CertificateFiles<'_> {
    /// Checks that a certificate and its private key are set together.
    pub(crate) fn check(&self) -> CheckResult {
        let cert = format!("{}.{}", self.section, self.cert_key);
        let private_key = format!("{}.{}", self.section, self.private_key_key);
        if self.cert.is_some() && self.private_key.is_none() {
            let problem = format!("the certificate needs its `{}`", self.private_key_key);
            return Err(violation_of([&cert, &private_key], problem));
        }
        if self.cert.is_none() && self.private_key.is_some() {
            let problem = format!("the key needs its certificate: `{}`", self.cert_key);
            return Err(violation_of([&private_key, &cert], problem));
        }
        Ok(())
    }
}

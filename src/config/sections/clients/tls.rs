//! The section `tls`: TLS of the client listener and the admin listener.

use crate::config::backends::client_tls::CertificateFiles;
use tokenweir_net::tls::TlsServerSettings;
use tokenweir_settings::{CheckResult, ConfigSection, ReloadClass, violation_of};

/// Values, rules and reload class of the section `tls`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = TlsServerSettings;
    // Changed files of this section are reloaded separately.
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    fn check(tls: &TlsServerSettings, _: &C) -> CheckResult {
        CertificateFiles {
            section: "tls",
            cert_key: "cert",
            cert: tls.cert.as_ref(),
            private_key_key: "key",
            private_key: tls.key.as_ref(),
        }
        .check()?;
        if tls.client_ca.is_some() {
            needs_certificate("tls.client_ca", tls)?;
        }
        if tls.admin {
            needs_certificate("tls.admin", tls)?;
        }
        Ok(())
    }
}

/// Fails if TLS is off although the key at `path` needs it.
fn needs_certificate(path: &str, tls: &TlsServerSettings) -> CheckResult {
    if tls.cert.is_none() {
        let problem = "TLS is off: set `cert` and `key` to enable it";
        return Err(violation_of([path, "tls.cert", "tls.key"], problem));
    }
    Ok(())
}

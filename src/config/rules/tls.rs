//! Validation of `tls`, `backend_tls` and `backends[].tls`.

use crate::config::root::Config;
use crate::config::violation::{RuleViolation, violation_at, violation_of};
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::tls::{Acceptor, Alpn, TlsClientContext, TlsClientSettings, TlsError};

/// Checks the rules of these keys and returns the first violation.
pub(super) fn check(config: &Config) -> Result<(), RuleViolation> {
    let tls = &config.tls;
    match (&tls.cert, &tls.key) {
        (Some(_), None) => {
            return Err(incomplete("tls", ["cert", "key"], "the certificate needs its `key`"));
        }
        (None, Some(_)) => {
            return Err(incomplete(
                "tls",
                ["key", "cert"],
                "the key needs its certificate: `cert`",
            ));
        }
        (None, None) if tls.client_ca.is_some() => {
            let paths = ["tls.client_ca", "tls.cert", "tls.key"];
            return Err(violation_of(paths, "TLS is off: set `cert` and `key` to enable it"));
        }
        (None, None) if tls.admin => {
            let paths = ["tls.admin", "tls.cert", "tls.key"];
            return Err(violation_of(paths, "TLS is off: set `cert` and `key` to enable it"));
        }
        _ => {}
    }
    check_client_certificate("backend_tls", &config.backend_tls)?;
    for (index, backend) in config.backends.iter().enumerate() {
        let Some(tls) = &backend.tls else { continue };
        check_entry(&format!("backends.{index}.tls"), &backend.url, tls)?;
    }
    Ok(())
}

/// Checks the TLS settings of one backend.
fn check_entry(
    path: &str,
    address: &BackendAddress,
    tls: &TlsClientSettings,
) -> Result<(), RuleViolation> {
    if !address.is_https() {
        return Err(violation_at(path, format!("{address} does not use TLS; write https://")));
    }
    check_client_certificate(path, tls)
}

fn check_client_certificate(path: &str, tls: &TlsClientSettings) -> Result<(), RuleViolation> {
    let at = |key: &str| format!("{path}.{key}");
    match (&tls.client_cert, &tls.client_key) {
        (Some(_), None) => {
            let problem = "the certificate needs its `client_key`";
            return Err(incomplete(path, ["client_cert", "client_key"], problem));
        }
        (None, Some(_)) => {
            let problem = "the key needs its certificate: `client_cert`";
            return Err(incomplete(path, ["client_key", "client_cert"], problem));
        }
        _ => {}
    }
    match tls.server_name.as_ref().map(|name| (name, tokenweir_net::tls::is_server_name(name))) {
        Some((name, false)) => {
            Err(violation_at(&at("server_name"), format!("`{name}` is not a valid server name")))
        }
        _ => Ok(()),
    }
}

/// The violation of a pair of keys below `path` of which only the first is set.
fn incomplete(path: &str, keys: [&str; 2], problem: &str) -> RuleViolation {
    let paths = keys.map(|key| format!("{path}.{key}")).into();
    RuleViolation { paths, problem: problem.to_owned() }
}

/// The problems with TLS files on this machine, each with the path of its section.
pub fn file_problems(config: &Config) -> Vec<(String, TlsError)> {
    let client_tls = |settings: &TlsClientSettings| TlsClientContext::new(settings, Alpn::Http1);
    let of_listener = Acceptor::for_client_listener(&config.tls).err();
    let of_backends = client_tls(&config.backend_tls).err();
    let of_entry = |section: &str, index: usize, tls: Option<&TlsClientSettings>| {
        (format!("{section}.{index}.tls"), tls.and_then(|tls| client_tls(tls).err()))
    };
    let of_entries = config.backends.iter().enumerate();
    let of_entries =
        of_entries.map(|(index, entry)| of_entry("backends", index, entry.tls.as_ref()));
    [("tls".to_owned(), of_listener), ("backend_tls".to_owned(), of_backends)]
        .into_iter()
        .chain(of_entries)
        .filter_map(|(path, error)| Some((path, error?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::config::tests::problem;

    #[test]
    fn incomplete_tls_settings_are_rejected() {
        for (text, expected) in [
            ("tls: { cert: a.pem }", "needs its `key`"),
            ("tls: { key: a.pem }", "needs its certificate"),
            ("tls: { client_ca: a.pem }", "TLS is off"),
            ("tls: { admin: true }", "TLS is off"),
            ("backend_tls: { client_cert: a.pem }", "needs its `client_key`"),
            ("backend_tls: { client_key: a.pem }", "needs its certificate"),
            ("backend_tls: { server_name: 'a b' }", "`a b` is not a valid server name"),
            ("backends: [{ url: 'http://a:1', tls: { ca: a.pem } }]", "write https://"),
            ("limits: { keep_alive: 0s }", "1ms or more"),
            ("limits: { connections: 0 }", "more than 0"),
            ("limits: { memory: 1MiB }", "64MiB or more"),
        ] {
            let problem = problem(text).unwrap_or_default();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
        let valid = "tls: { cert: a.pem, key: b.pem, client_ca: c.pem, admin: true }\n\
                     backend_tls: { ca: a.pem, client_cert: b.pem, client_key: c.pem }\n\
                     backends: [{ url: 'https://a', tls: { ca: d.pem, server_name: 10.0.0.1 } }]\n\
                     limits: { memory: 4GiB, connections: 9 }";
        assert_eq!(problem(valid), None);
    }
}

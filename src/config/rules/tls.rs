//! Validation of `tls`, `backend_tls` and `backends[].tls`.

use crate::config::root::Config;
use crate::config::violation::{RuleViolation, require, violation_of};
use std::path::PathBuf;
use tokenweir_engine::address::BackendAddress;
use tokenweir_net::tls::{Acceptor, Alpn, TlsClientContext, TlsClientSettings, TlsError};

/// Checks the rules of these keys and returns the first violation.
pub(super) fn check(config: &Config) -> Result<(), RuleViolation> {
    let tls = &config.tls;
    check_pair("tls", ["cert", "key"], [&tls.cert, &tls.key])?;
    for (path, is_set) in [("tls.client_ca", tls.client_ca.is_some()), ("tls.admin", tls.admin)] {
        if is_set && tls.cert.is_none() {
            let paths = [path, "tls.cert", "tls.key"];
            return Err(violation_of(paths, "TLS is off: set `cert` and `key` to enable it"));
        }
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
    require(address.is_https(), path, format!("{address} does not use TLS; write https://"))?;
    check_client_certificate(path, tls)
}

fn check_client_certificate(path: &str, tls: &TlsClientSettings) -> Result<(), RuleViolation> {
    check_pair(path, ["client_cert", "client_key"], [&tls.client_cert, &tls.client_key])?;
    let Some(name) = &tls.server_name else { return Ok(()) };
    let problem = format!("`{name}` is not a valid server name");
    require(tokenweir_net::tls::is_server_name(name), &format!("{path}.server_name"), problem)
}

/// Checks that a certificate and its private key are set together. `keys`: the configuration keys of both,
/// below `path`.
fn check_pair(
    path: &str,
    keys: [&str; 2],
    files: [&Option<PathBuf>; 2],
) -> Result<(), RuleViolation> {
    let [cert, key] = keys.map(|key| format!("{path}.{key}"));
    match files {
        [Some(_), None] => {
            let problem = format!("the certificate needs its `{}`", keys[1]);
            Err(violation_of([&cert, &key], problem))
        }
        [None, Some(_)] => {
            let problem = format!("the key needs its certificate: `{}`", keys[0]);
            Err(violation_of([&key, &cert], problem))
        }
        _ => Ok(()),
    }
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

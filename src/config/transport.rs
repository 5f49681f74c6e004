//! Rules about TLS: what belongs together, and where it means something.

use super::Config;
use super::rules::{Broken, broken};
use tokenweir_net::tls::{Acceptor, Alpn, ClientSettings, Identity};

/// The first rule that is broken.
pub(super) fn check(config: &Config) -> Result<(), Broken> {
    let tls = &config.tls;
    match (&tls.cert, &tls.key) {
        (Some(_), None) => return Err(broken("tls.cert", "a certificate needs its `key`")),
        (None, Some(_)) => return Err(broken("tls.key", "a key needs its certificate: `cert`")),
        (None, None) if tls.client_ca.is_some() => {
            return Err(broken("tls.client_ca", "without `cert` and `key` there is no TLS"));
        }
        (None, None) if tls.admin => {
            return Err(broken("tls.admin", "without `cert` and `key` there is no TLS"));
        }
        _ => {}
    }
    belongs_together("backend_tls", &config.backend_tls)?;
    for (index, backend) in config.backends.iter().enumerate() {
        let Some(tls) = &backend.tls else { continue };
        let path = format!("backends.{index}.tls");
        if !backend.url.is_https() {
            return Err(broken(&path, format!("{} is without TLS; write https://", backend.url)));
        }
        belongs_together(&path, tls)?;
    }
    Ok(())
}

fn belongs_together(path: &str, tls: &ClientSettings) -> Result<(), Broken> {
    let at = |key: &str| format!("{path}.{key}");
    match (&tls.client_cert, &tls.client_key) {
        (Some(_), None) => {
            return Err(broken(&at("client_cert"), "a certificate needs its `client_key`"));
        }
        (None, Some(_)) => {
            return Err(broken(&at("client_key"), "a key needs its certificate: `client_cert`"));
        }
        _ => {}
    }
    match tls.server_name.as_ref().map(|name| (name, tokenweir_net::tls::is_server_name(name))) {
        Some((name, false)) => {
            Err(broken(&at("server_name"), format!("`{name}` is not the name of a server")))
        }
        _ => Ok(()),
    }
}

/// What is wrong with files here, which may be right where the gateway runs.
pub(super) fn notes(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |path: &str, error: Option<tokenweir_net::tls::TlsError>| {
        notes.extend(error.map(|error| format!("{path}: {error}")));
    };
    note("tls", Acceptor::for_clients(&config.tls).err());
    note("backend_tls", Identity::new(&config.backend_tls, Alpn::Http1).err());
    for backend in &config.backends {
        let tls = backend.tls.as_ref();
        let error = tls.and_then(|tls| Identity::new(tls, Alpn::Http1).err());
        note(&format!("the tls of {}", backend.id()), error);
    }
    notes
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Overrides, check};
    use std::path::Path;

    fn problem(text: &str) -> Option<String> {
        let parsed = Config::parse(text, Path::new("gateway.yaml"), Overrides::default());
        parsed.err().map(|error| error.problem().to_owned())
    }

    #[test]
    fn what_belongs_together_must_be_there() {
        for (text, wanted) in [
            ("tls: { cert: a.pem }", "needs its `key`"),
            ("tls: { key: a.pem }", "needs its certificate"),
            ("tls: { client_ca: a.pem }", "there is no TLS"),
            ("tls: { admin: true }", "there is no TLS"),
            ("backend_tls: { client_cert: a.pem }", "needs its `client_key`"),
            ("backend_tls: { client_key: a.pem }", "needs its certificate"),
            ("backend_tls: { server_name: 'a b' }", "`a b` is not the name of a server"),
            ("backends: [{ url: 'http://a:1', tls: { ca: a.pem } }]", "write https://"),
            ("limits: { keep_alive: 0s }", "1ms or more"),
            ("limits: { connections: 0 }", "more than 0"),
            ("limits: { streams_per_connection: 0 }", "more than 0"),
            ("limits: { memory: 1MiB }", "64MiB or more"),
            ("limits: { header: 1KiB }", "8KiB or more"),
        ] {
            let problem = problem(text).unwrap_or_default();
            assert!(problem.contains(wanted), "{text}: {problem}");
        }
        let whole = "tls: { cert: a.pem, key: b.pem, client_ca: c.pem, admin: true }\n\
                     backend_tls: { ca: a.pem, client_cert: b.pem, client_key: c.pem }\n\
                     backends: [{ url: 'https://a', tls: { ca: d.pem, server_name: 10.0.0.1 } }]\n\
                     limits: { memory: 4GiB, connections: 9 }";
        assert_eq!(problem(whole), None);
    }

    #[test]
    fn a_check_notes_files_that_are_not_here() {
        let file = std::env::temp_dir().join(format!("tokenweir-tls-{}.yaml", std::process::id()));
        let text = "backends: [{ url: 'https://a', name: a, tls: { ca: /absent/ca.pem } }]\n\
                    tls: { cert: /absent/cert.pem, key: /absent/key.pem }\n";
        std::fs::write(&file, text).unwrap();
        let found = check(&file, |_| None);
        std::fs::remove_file(&file).unwrap();
        let found = found.to_string();
        assert!(found.contains("note: tls: /absent/cert.pem cannot be read"), "{found}");
        assert!(found.contains("note: the tls of a: /absent/ca.pem cannot be read"), "{found}");
    }
}

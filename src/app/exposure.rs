//! Warnings about three kinds of risks: listeners that other machines can reach without a key or a token,
//! secrets that can be guessed, and settings that contradict each other.

use crate::config::{Contradiction, ListedSecret, LoadedConfig};
use tokenweir_settings::Environment;

/// The configuration keys of the secrets that must be hard to guess.
const GUESSED_SECRETS: [&str; 3] = [
    "access.admin_token",
    "access.cache_salt_secret",
    "identities.secret",
];

/// Minimum length of a secret in [`GUESSED_SECRETS`], in characters. A shorter secret causes a warning.
const MIN_SECRET_CHARS: usize = 16;

/// Returns the warnings about a configuration. The gateway logs them at the start, and `tokenweir check` prints
/// them. `env` returns the value of an environment variable. Unreadable secrets cause no warning.
pub(super) fn warnings(loaded: &LoadedConfig, env: impl Environment) -> Vec<String> {
    let config = &loaded.config;
    let mut warnings = Vec::new();
    for ListedSecret { path, secret, .. } in config.secrets() {
        if !GUESSED_SECRETS.contains(&path.as_str()) {
            continue;
        }
        if secret
            .resolve(&env)
            .is_ok_and(|value| value.as_bytes().len() < MIN_SECRET_CHARS)
        {
            warnings.push(format!(
                "{path} has less than {MIN_SECRET_CHARS} characters and can be guessed: use `openssl rand -hex 32`"
            ));
        }
    }
    for Contradiction { path, problem } in loaded.contradictions() {
        warnings.push(format!("{path}: {problem}"));
    }
    if config.access.keys_file.is_none() && !config.listen.ip().is_loopback() {
        warnings.push(format!(
            "clients are not authenticated: every client that reaches {} can use the backends; set \
             access.keys_file to require keys",
            config.listen.0
        ));
    }
    if config.access.admin_token.is_none() && !config.admin.ip().is_loopback() {
        warnings.push(format!(
            "the admin listener {} has no token: every client that reaches it can read the \
             configuration and the names of tenants; drain, undrain and reload are refused on it; \
             set access.admin_token, or listen on 127.0.0.1",
            config.admin.0
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parse;

    fn warnings_of(text: &str) -> Vec<String> {
        let loaded = parse(text).unwrap();
        let env = |name: &str| (name == "T").then(|| "16 or more characters".replace(' ', "-"));
        warnings(&loaded, |name| {
            if name == "SHORT" {
                Some("admin".to_owned())
            } else {
                env(name)
            }
        })
    }

    #[test]
    fn a_guessable_secret_causes_a_warning() {
        let found = warnings_of("access: { admin_token: { env: SHORT } }\n");
        assert!(
            found[0].starts_with("access.admin_token has less than 16"),
            "{found:?}"
        );
        assert_eq!(
            warnings_of("access: { admin_token: { env: ABSENT } }\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn an_open_listener_causes_a_warning() {
        assert_eq!(warnings_of(""), Vec::<String>::new());
        let open = "listen: 0.0.0.0:8080\nadmin: '[::]:9090'\n";
        let found = warnings_of(open);
        assert_eq!(found.len(), 2);
        assert!(found[1].contains("[::]:9090 has no token"), "{found:?}");
        let closed = "access: { keys_file: keys.yaml, admin_token: { env: T } }\n";
        assert_eq!(
            warnings_of(&format!("{open}{closed}")),
            Vec::<String>::new()
        );
    }
}

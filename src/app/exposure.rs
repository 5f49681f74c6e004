//! Warnings about listeners that other machines can reach without a key or a token.

use crate::config::Config;

/// The warnings of a configuration: at the start in the log, and in `tokenweir check`.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.access.keys_file.is_none() && !config.listen.ip().is_loopback() {
        warnings.push(format!(
            "clients are not authenticated: every client that reaches {} can use the backends; set \
             access.keys_file to require keys",
            config.listen
        ));
    }
    if config.access.admin_token.is_none() && !config.admin.ip().is_loopback() {
        warnings.push(format!(
            "the admin listener {} has no token: every client that reaches it can read the \
             configuration and the names of tenants; drain, undrain and reload are refused on it; \
             set access.admin_token, or listen on 127.0.0.1",
            config.admin
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Overrides;
    use std::path::Path;

    fn warnings_of(text: &str) -> Vec<String> {
        let loaded = Config::parse(text, Path::new("a.yaml"), Overrides::default()).unwrap();
        warnings(&loaded.config)
    }

    #[test]
    fn an_open_listener_is_warned_of_unless_it_needs_a_key_or_a_token() {
        assert_eq!(warnings_of(""), Vec::<String>::new());
        let open = "listen: 0.0.0.0:8080\nadmin: '[::]:9090'\n";
        let found = warnings_of(open);
        assert_eq!(found.len(), 2);
        assert!(found[1].contains("[::]:9090 has no token"), "{found:?}");
        let closed = "access: { keys_file: keys.yaml, admin_token: { env: T } }\n";
        assert_eq!(warnings_of(&format!("{open}{closed}")), Vec::<String>::new());
    }
}

//! Who may come in: the settings, and the file of tenants and keys, which is a file of its own so
//! that it can be a secret and change without the rest.

use super::error::{ConfigError, Cut};
use super::rules::{Broken, broken};
use super::secret::Secret;
use super::settings::Tiers;
use super::{file, yaml};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tokenweir_core::access::{Roster, cors};
use tokenweir_core::openai::control::Permission;

/// Who may come in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Access {
    /// The file of tenants and keys. `None`: nobody needs a key.
    pub keys_file: Option<PathBuf>,
    /// The web pages that may read answers.
    pub cors: cors::Settings,
    /// Host names by which browsers and tools may ask the admin port while it has no token, besides
    /// `localhost` and addresses.
    pub admin_hosts: Vec<String>,
    /// The token that the admin port wants. `None`: none.
    pub admin_token: Option<Secret>,
    /// Whether `/metrics` wants no token all the same.
    pub open_metrics: bool,
    /// The engine-control fields that every client may use, such as `kv_transfer`. Tenants and models
    /// have lists of their own, and one list that has the field is enough: see docs/security.md.
    pub allow: Vec<Permission>,
    /// Who shares the prefix caches of the engines.
    pub cache_salt: CacheSalt,
}

/// Who shares the prefix caches of the engines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CacheSalt {
    /// What the `cache_salt` of each request is derived from, together with the client's own. Tenants
    /// come from `access.keys_file`. `None`: the client's own passes, if it sends one.
    pub derive: Option<SaltSource>,
    /// A secret that makes the salts unpredictable; the same in all gateways. `None`: none.
    pub secret: Option<Secret>,
}

/// What a `cache_salt` is derived from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SaltSource {
    /// The tenant: tenants share no cached prefix.
    Tenant,
}

/// The first rule that is broken.
pub(super) fn check(access: &Access) -> Result<(), Broken> {
    if access.keys_file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
        return Err(broken("access.keys_file", "write the path of a file, or null"));
    }
    if access.cache_salt.derive.is_some() && access.keys_file.is_none() {
        let problem = "salts are derived from tenants, and there are none; set access.keys_file";
        return Err(broken("access.cache_salt.derive", problem));
    }
    let is_name = |name: &String| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    if let Some(index) = access.admin_hosts.iter().position(|name| !is_name(name)) {
        let problem = "write a host name without scheme and port, such as gateway.example.com";
        return Err(broken(&format!("access.admin_hosts.{index}"), problem));
    }
    match access.cors.stray() {
        Some(index) => {
            let problem =
                "write `*`, or an origin as browsers send it, such as https://example.com";
            Err(broken(&format!("access.cors.origins.{index}"), problem))
        }
        None => Ok(()),
    }
}

/// Reads a file of tenants and keys, and checks it. Tenants may have the tiers of a configuration.
///
/// The error names the place in the file and quotes none of its text, because an operator may have
/// written a key where its hash belongs.
pub fn load_keys(file: &Path, tiers: &Tiers) -> Result<Roster, ConfigError> {
    let text = file::read(file).map_err(ConfigError::without_quotes)?;
    let (roster, outline) =
        yaml::parse::<Roster>(&text, file).map_err(ConfigError::without_quotes)?;
    let of_keys = tiers.keys.iter().map(|key| &key.tier);
    let known: Vec<&String> = tiers.names.iter().chain(of_keys).collect();
    roster.check(&known).map_err(|wrong| {
        let error = ConfigError::new(&wrong.problem);
        match outline.position(&wrong.path) {
            Some(position) => error.at(file, position, &text, Cut::Nothing).without_excerpt(),
            None => error.in_file(file),
        }
    })?;
    Ok(roster)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HASH: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const CANARY: &str = "canary-5e1f";

    fn with_one_key() -> String {
        format!(
            "tenants:\n- name: a\n  tier: gold\n  models: [m]\n  allow: [xargs]\n  keys:\n  - {{ name: \
             k, hash: '{HASH}' }}\n"
        )
    }

    fn load(name: &str, text: &str) -> Result<Roster, String> {
        let folder = std::env::temp_dir().join(format!("tokenweir-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(name);
        std::fs::write(&file, text).unwrap();
        let tiers = Tiers { names: vec!["gold".into()], ..Tiers::default() };
        let loaded = load_keys(&file, &tiers);
        std::fs::remove_file(&file).unwrap();
        loaded.map_err(|error| error.to_string().replace(&*file.to_string_lossy(), "FILE"))
    }

    #[test]
    fn a_file_has_tenants_with_several_keys() {
        let other = HASH.replace(":ba", ":bb");
        let text = format!(
            "tenants:\n- name: a\n  tier: gold\n  models: [m, 'n-*']\n  limits: {{ concurrency: 2 }}\n  \
             keys:\n  - {{ name: one, hash: '{HASH}' }}\n  - name: two\n    hash: {other}\n    \
             limits: {{ tokens_per_minute: 10 }}\n"
        );
        let roster = load("good.yaml", &text).unwrap();
        let tenant = &roster.tenants[0];
        assert_eq!((tenant.keys.len(), tenant.limits.concurrency), (2, Some(2)));
        assert_eq!(tenant.keys[0].hash.to_string(), HASH);
        assert_eq!(tenant.keys[1].limits.tokens_per_minute, Some(10));
    }

    #[test]
    fn a_bad_file_is_refused_where_it_is_wrong() {
        let key = format!("{{ name: k, hash: '{HASH}' }}");
        for (name, text, expected) in [
            (
                "key",
                "tenants:\n- name: a\n  keys:\n  - { name: k, hash: sk-123 }\n".into(),
                "FILE:4:22: this is not the hash of a key; `tokenweir key` prints one, as sha256:, \
                 and 64 digits",
            ),
            (
                "twice",
                format!("tenants:\n- name: a\n  keys: [{key}, {{ name: l, hash: '{HASH}' }}]\n"),
                "FILE:3:121: this is already the hash of the key `k` of `a`",
            ),
            (
                "names",
                "tenants:\n- { name: a, keys: [] }\n- { name: a, keys: [] }\n".into(),
                "FILE:3:11: this name stands here twice",
            ),
            (
                "label",
                "tenants: [{ name: _other, keys: [] }]\n".into(),
                "FILE:1:19: a name has 1 to 64 letters, digits and any of `-_.`, and no `_` before \
                 them",
            ),
            (
                "tier",
                "tenants: [{ name: a, tier: lead, keys: [] }]\n".into(),
                "FILE:1:28: this is not a tier of `tiers` in the configuration",
            ),
            (
                "model",
                "tenants: [{ name: a, models: ['*a'], keys: [] }]\n".into(),
                "FILE:1:31: a model is a name, or the beginning of one and a `*`",
            ),
            (
                "permission",
                "tenants: [{ name: a, allow: [kv_transfr], keys: [] }]\n".into(),
                "FILE:1:30: unknown value `…`\nhelp: did you mean `kv_transfer`?",
            ),
            (
                "limit",
                "tenants: [{ name: a, limits: { concurrency: 0 }, keys: [] }]\n".into(),
                "FILE:1:45: this must be 1 or more; leave it out for no limit",
            ),
        ] {
            assert_eq!(load(name, &text).unwrap_err(), expected, "{text}");
        }
        assert!(load("empty", "").is_err(), "as it is for a moment when it is written anew");
    }

    #[test]
    fn a_tenant_has_the_permissions_of_its_list() {
        let roster = load("allow.yaml", &with_one_key()).unwrap();
        assert_eq!(roster.tenants[0].allow, [Permission::Xargs]);
        let plain = load("plain.yaml", &with_one_key().replace("  allow: [xargs]\n", "")).unwrap();
        assert_eq!(plain.tenants[0].allow, []);
    }

    #[test]
    fn a_key_that_stands_where_a_tier_belongs_is_not_quoted() {
        let good = with_one_key();
        for place in 0..=good.len() {
            let mut text = good.clone();
            text.insert_str(place, CANARY);
            let problem = load("misplaced", &text).err().unwrap_or_default();
            assert!(!problem.contains("5e1f"), "{problem}\n{text}");
        }
    }

    proptest! {
        /// A key stands in a file where it does not belong, however broken the file is.
        #[test]
        fn no_message_quotes_a_key_that_somebody_put_into_the_file(
            cut in 0_usize..200, insert in 0_usize..200, junk in "[\\[\\]{}:,'\"*&!|>%@` \n\t-]{0,3}"
        ) {
            let good = with_one_key();
            let mut text = good.clone();
            text.insert_str(insert.min(good.len()), &format!("{junk}{CANARY}{junk}"));
            text.truncate(text.len() - cut.min(20));
            if let Err(error) = load(&format!("canary-{cut}-{insert}"), &text) {
                prop_assert!(!error.contains("5e1f"), "{error}\n{text}");
            }
        }
    }
}

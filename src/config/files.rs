//! Loads the files that a configuration names: the keys file, and the backends file of a discovery
//! source.

use super::backends::section::{self, BackendConfig};
use super::mistake::Mistake;
use super::mistakes::{self, Mistakes};
use super::sections::clients::tiers::TiersConfig;
use super::text::error::ConfigError;
use super::text::file;
use super::text::yaml::{self, Outline};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::{fs, io};
use tokenweir_net::file_watcher::files_of;
use tokenweir_request::access::KeyFile;
use tokenweir_settings::{RuleViolation, violation_at};

/// The kind of content that `tokenweir check` expects in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CheckedFile {
    /// A configuration.
    // The configuration, with the files, certificates, keys and secrets that it names.
    #[default]
    Config,
    /// The text of a configuration only. The files that the configuration names are not read,
    /// because they may be on another machine.
    #[value(skip)]
    ConfigSyntax,
    /// A file of tenants and keys (`access.keys_file`).
    Keys,
    /// A list of backends (`discovery[].file`).
    Backends,
}

/// Loads and validates a keys file. `tiers` lists the tiers that its tenants may have.
///
/// An error has a position in the file but shows no value, because an operator may have written a key in place
/// of its hash.
///
/// The path may be a folder, whose files are then the parts of one keys file.
pub fn load_keys(path: &Path, tiers: &TiersConfig) -> Result<KeyFile, ConfigError> {
    let files =
        files_of(path).map_err(|error| ConfigError::unreadable(path, &error.to_string()))?;
    // The parts are loaded sequentially, because the allocator would keep memory of each thread that parses.
    let parts = files.iter().map(|file| load_part(file, tiers));
    let parts = parts.collect::<Result<_, _>>()?;
    let merged = KeyFile::merged(parts).and_then(|keys| {
        // Each part is valid, so only values of different parts can contradict each other.
        if files.len() > 1 {
            keys.check(&tiers.names)?;
        }
        Ok(keys)
    });
    merged.map_err(|violation| ConfigError::new(&violation.problem).in_file(path))
}

fn load_part(file: &Path, tiers: &TiersConfig) -> Result<KeyFile, ConfigError> {
    let text = file::read(file).map_err(ConfigError::without_quotes)?;
    let part = parse_keys(&text, file, Some(tiers));
    part.map_err(|mistake| mistake.error.with_redacted_line(&text))
}

/// Like [`load_keys`], but without a configuration, so that tenants may have any tier. Returns all mistakes.
pub fn load_all_keys(file: &Path) -> Result<KeyFile, Mistakes<KeyFile>> {
    let text = file::read(file).map_err(ConfigError::without_quotes)?;
    mistakes::find_all(&text, |text| parse_keys(text, file, None)).map_err(|mut found| {
        let errors = found.errors.into_iter();
        found.errors = errors
            .map(|error| error.with_redacted_line(&text))
            .collect();
        found
    })
}

fn parse_keys(text: &str, file: &Path, tiers: Option<&TiersConfig>) -> Result<KeyFile, Mistake> {
    let keys: KeyFile = yaml::parse_long(text, file).map_err(ConfigError::without_quotes)?;
    let tier_names: Vec<&String> = match tiers {
        Some(tiers) => tiers.names.iter().collect(),
        None => keys
            .tenants
            .iter()
            .filter_map(|tenant| tenant.tier.as_ref())
            .collect(),
    };
    let Err(violation) = keys.check(&tier_names) else {
        return Ok(keys);
    };
    let outline = yaml::long_outline(text, file).map_err(ConfigError::without_quotes)?;
    let violation = violation_at(&violation.path, violation.problem);
    Err(mistake(violation, &outline, file, text))
}

/// Loads and validates the file of a discovery source: a list of backends.
pub fn backends_in(path: &Path) -> Result<Vec<BackendConfig>, ConfigError> {
    parse_backends(&file::read(path)?, path).map_err(|mistake| mistake.error)
}

/// Like [`backends_in`], but returns all mistakes.
pub fn all_backends_in(path: &Path) -> Result<Vec<BackendConfig>, Mistakes<Vec<BackendConfig>>> {
    mistakes::find_all(&file::read(path)?, |text| parse_backends(text, path))
}

fn parse_backends(text: &str, file: &Path) -> Result<Vec<BackendConfig>, Mistake> {
    let (backends, outline) = yaml::parse::<Vec<BackendConfig>>(text, file)?;
    section::check(&backends).map_err(|RuleViolation { paths, problem }| {
        // The rules return paths as in a configuration, below `backends`.
        let paths: Vec<String> = paths
            .iter()
            .map(|path| path.strip_prefix("backends.").unwrap_or(path).to_owned())
            .collect();
        mistake(RuleViolation { paths, problem }, &outline, file, text)
    })?;
    Ok(backends)
}

/// Converts a rule violation to a mistake at the position of the first value that violates the rule.
fn mistake(violation: RuleViolation, outline: &Outline, file: &Path, text: &str) -> Mistake {
    let RuleViolation { paths, problem } = violation;
    let error = ConfigError::new(&problem);
    let error = match paths.first().and_then(|path| outline.position(path)) {
        Some(position) => error.at(file, position, text),
        None => error.in_file(file),
    };
    Mistake { error, paths }
}

/// Fails if lines cannot be appended to a file. A missing file is created and removed again.
pub fn check_appendable(file: &Path) -> io::Result<()> {
    let metadata = fs::metadata(file);
    // Opening a pipe would block until another process reads it.
    if metadata.as_ref().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    // Creates the file as the gateway does. If the file cannot be removed, the gateway will write into it.
    fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(file)?;
    if metadata.is_err() {
        fs::remove_file(file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::backends::discovery::DiscoveryConfig;
    use crate::config::backends::usage::UsageMode;
    use proptest::prelude::*;
    use tokenweir_net::testing::TempFolder;
    use tokenweir_protocol::openai::engine_control::Permission;
    use tokenweir_settings::Secret;

    const HASH: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    /// A text that stands for a key and must not appear in an error text.
    const CANARY: &str = "canary-5e1f";

    fn keys_text() -> String {
        format!(
            "tenants:\n- name: a\n  tier: gold\n  models: [m]\n  allow: [xargs]\n  keys:\n  \
             - {{ name: k, hash: '{HASH}' }}\n"
        )
    }

    fn load(name: &str, text: &str) -> Result<KeyFile, String> {
        let folder = TempFolder::new(&format!("keys-{name}"));
        let file = folder.write(name, text);
        let tiers = TiersConfig {
            names: vec!["gold".into()],
            ..TiersConfig::default()
        };
        let loaded = load_keys(&file, &tiers);
        loaded.map_err(|error| error.to_string().replace(&*file.to_string_lossy(), "FILE"))
    }

    #[test]
    fn a_tenant_can_have_several_keys_and_limits() {
        let other_hash = HASH.replace(":ba", ":bb");
        let text = format!(
            "tenants:\n- name: a\n  tier: gold\n  models: [m, 'n-*']\n  allow: [xargs]\n  \
             limits: {{ concurrency: 2 }}\n  keys:\n  - {{ name: one, hash: '{HASH}' }}\n  \
             - name: two\n    hash: {other_hash}\n    limits: {{ tokens_per_minute: 10 }}\n\
             - {{ name: b, keys: [] }}\n"
        );
        let keys = load("good.yaml", &text).unwrap();
        let tenant = &keys.tenants[0];
        assert_eq!((tenant.keys.len(), tenant.limits.concurrency), (2, Some(2)));
        assert_eq!(tenant.keys[0].hash.to_string(), HASH);
        assert_eq!(tenant.keys[1].limits.tokens_per_minute, Some(10));
        assert_eq!(
            (&tenant.allow[..], keys.tenants[1].allow.len()),
            (&[Permission::Xargs][..], 0)
        );
    }

    #[test]
    fn an_invalid_keys_file_gives_a_position() {
        let key = format!("{{ name: k, hash: '{HASH}' }}");
        for (name, text, expected) in [
            (
                "key",
                "tenants:\n- name: a\n  keys:\n  - { name: k, hash: sk-123 }\n".into(),
                "FILE:4:22: this is not the hash of a key; use a sha256: hash from tokenweir \
                 keygen",
            ),
            (
                "twice",
                format!("tenants:\n- name: a\n  keys: [{key}, {{ name: l, hash: '{HASH}' }}]\n"),
                "FILE:3:121: duplicate hash: the key `k` of `a` has the same hash",
            ),
            (
                "names",
                "tenants:\n- { name: a, keys: [] }\n- { name: a, keys: [] }\n".into(),
                "FILE:3:11: duplicate name: another entry of this list has it",
            ),
            (
                "label",
                "tenants: [{ name: _other, keys: [] }]\n".into(),
                "FILE:1:19: invalid name: use 1 to 64 letters, digits, `-`, `_` and `.`, and do \
                 not begin with `_`",
            ),
            (
                "tier",
                "tenants: [{ name: a, tier: lead, keys: [] }]\n".into(),
                "FILE:1:28: unknown tier: it is not in `tiers` of the configuration",
            ),
            (
                "model",
                "tenants: [{ name: a, models: ['*a'], keys: [] }]\n".into(),
                "FILE:1:31: invalid model: write a name, or a prefix followed by one `*`",
            ),
            (
                "permission",
                "tenants: [{ name: a, allow: [kv_transfr], keys: [] }]\n".into(),
                "FILE:1:30: unknown value `…`\nhelp: did you mean `kv_transfer`?",
            ),
            (
                "limit",
                "tenants: [{ name: a, limits: { concurrency: 0 }, keys: [] }]\n".into(),
                "FILE:1:45: a limit must be 1 or more; leave it out for no limit",
            ),
        ] {
            let found = load(name, &text).unwrap_err();
            let (first, help) = expected.split_once('\n').unwrap_or((expected, ""));
            assert_eq!(found.lines().next(), Some(first), "{text}");
            assert!(found.contains(help), "{found}");
        }
        assert!(
            load("empty", "").is_err(),
            "a file is empty for a moment while it is rewritten"
        );
    }

    #[test]
    fn the_files_of_a_folder_are_one_file() {
        let folder = TempFolder::new("keys-folder");
        let other = HASH.replace("ba78", "ba79");
        let entry = |name: &str, key: &str, hash: &str, more: &str| {
            format!("tenants:\n- name: {name}\n{more}  keys: [{{ name: {key}, hash: '{hash}' }}]\n")
        };
        let limits = "  limits: { requests_per_day: 9 }\n";
        folder.write("a.yaml", &entry("a", "k", HASH, limits));
        folder.write("b.yaml", &entry("a", "l", &other, ""));
        folder.write(".hidden", "no keys");
        let load = || load_keys(folder.path(), &TiersConfig::default());
        let keys = load().unwrap();
        assert_eq!(keys.tenants.len(), 1);
        assert_eq!(keys.tenants[0].keys.len(), 2);
        assert_eq!(keys.tenants[0].limits.requests_per_day, Some(9));
        folder.write("c.yaml", &entry("c", "k", HASH, ""));
        let error = load().unwrap_err().to_string();
        assert!(error.contains("duplicate hash"), "{error}");
        folder.write("c.yaml", "tenants: [{ name: a, models: [m], keys: [] }]");
        let error = load().unwrap_err().to_string();
        assert!(error.contains("settings in two files"), "{error}");
    }

    #[test]
    fn no_error_quotes_a_misplaced_key() {
        let good = keys_text();
        for index in 0..=good.len() {
            let mut text = good.clone();
            text.insert_str(index, CANARY);
            let problem = load("misplaced", &text).err().unwrap_or_default();
            assert!(!problem.contains("5e1f"), "{problem}\n{text}");
        }
    }

    proptest! {
        /// Inserts a key at any position of a keys file, between characters that cause syntax
        /// errors.
        #[test]
        fn no_syntax_error_quotes_a_key(
            cut in 0_usize..200, insert in 0_usize..200,
            junk in "[\\[\\]{}:,'\"*&!|>%@` \n\t-]{0,3}"
        ) {
            let good = keys_text();
            let mut text = good.clone();
            text.insert_str(insert.min(good.len()), &format!("{junk}{CANARY}{junk}"));
            text.truncate(text.len() - cut.min(20));
            if let Err(error) = load(&format!("canary-{cut}-{insert}"), &text) {
                prop_assert!(!error.contains("5e1f"), "{error}\n{text}");
            }
        }
    }

    #[test]
    fn backends_get_the_defaults_of_their_source() {
        let folder = TempFolder::new("list");
        let listed = r#"[{"url":"http://a:1","weight":3},{"url":"b:1","usage":"inject"}]"#;
        let file = folder.write("list", listed);
        let source = r#"{ "file": "x", "usage": "passive", "api_key": { "env": "KEY" } }"#;
        let source: DiscoveryConfig = serde_json::from_str(source).unwrap();
        let listed = backends_in(&file).unwrap().into_iter();
        let backends: Vec<BackendConfig> = listed
            .map(|backend| source.apply_defaults(backend))
            .collect();
        assert_eq!(
            (backends[0].weight, backends[0].usage),
            (3, Some(UsageMode::Passive))
        );
        assert_eq!(
            (backends[1].weight, backends[1].usage),
            (1, Some(UsageMode::Inject))
        );
        assert_eq!(backends[1].api_key, Some(Secret::Env("KEY".into())));
        folder.write("list", "- url: a:1\n- url: http://A:1\n");
        let error = backends_in(&file).unwrap_err().to_string();
        assert!(error.contains("already the url of backends[0]"), "{error}");
    }
}

//! Schema and validation of the key file, which lists tenants and their API keys.

use super::caps::RequestCaps;
use super::digest::KeyDigest;
use super::usage_limits::UsageLimits;
use crate::continuation::ContinuationMode;
use serde::Deserialize;
use std::collections::HashMap;
use tokenweir_protocol::openai::engine_control::Permission;

/// The key file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// The tenants.
    pub tenants: Vec<TenantEntry>,
}

/// A tenant in the key file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantEntry {
    /// Name of the tenant in logs, spans and metrics.
    pub name: String,
    /// Tier of the requests of the tenant. `None`: the configuration determines the tier.
    pub tier: Option<String>,
    /// Models that the tenant may use: names, or prefixes followed by `*`. `None`: all models.
    pub models: Option<Vec<String>>,
    /// Permissions for engine-control fields, in addition to the permissions of all tenants.
    #[serde(default)]
    pub allow: Vec<Permission>,
    /// How streams of the tenant are continued at another backend, with the values of
    /// `streams.continuation`. `None`: the setting of the model applies.
    pub continuation: Option<ContinuationMode>,
    /// Limits of all keys of the tenant together.
    #[serde(default)]
    pub limits: UsageLimits,
    /// Caps on each request. `None`: no caps, and media of all hosts.
    pub caps: Option<RequestCaps>,
    /// API keys of the tenant.
    pub keys: Vec<KeyEntry>,
}

/// An API key in the key file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// Name of the key in logs.
    pub name: String,
    /// SHA-256 digest of the key.
    pub hash: KeyDigest,
    /// Limits of this key. The limits of its tenant also apply.
    #[serde(default)]
    pub limits: UsageLimits,
}

/// An invalid value in the key file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFileError {
    /// Path of the invalid value, such as `tenants.0.name`.
    pub path: String,
    /// Description of the error. Contains no part of a hash.
    pub problem: String,
}

/// Greatest number of tenants in a key file. The name of each tenant is a label value of metrics.
pub(super) const MAX_TENANTS: usize = 1_000;

/// Greatest length of the name of a tenant or a key, in bytes.
const MAX_NAME_BYTES: usize = 64;

// === impl KeyFile ===

impl KeyFile {
    /// Validates the file. Returns the first error. `tiers`: the tiers in the configuration.
    pub fn check<T: AsRef<str>>(&self, tiers: &[T]) -> Result<(), KeyFileError> {
        if self.tenants.len() > MAX_TENANTS {
            let problem = format!(
                "too many tenants: each has its own metric series, so there may be at most \
                 {MAX_TENANTS}"
            );
            return Err(key_file_error("tenants", problem));
        }
        let mut hashes = HashMap::new();
        for (index, tenant) in self.tenants.iter().enumerate() {
            let path = format!("tenants.{index}");
            let earlier_names = self.tenants.iter().take(index).map(|tenant| &tenant.name);
            check_name(&path, &tenant.name, earlier_names)?;
            tenant.check(&path, tiers)?;
            for (index, key) in tenant.keys.iter().enumerate() {
                let key_name = format!("`{}` of `{}`", key.name, tenant.name);
                if let Some(other) = hashes.insert(key.hash.lookup_hash(), key_name) {
                    let problem = format!("duplicate hash: the key {other} has the same hash");
                    return Err(key_file_error(
                        &format!("{path}.keys.{index}.hash"),
                        problem,
                    ));
                }
            }
        }
        Ok(())
    }
}

impl TenantEntry {
    fn check<T: AsRef<str>>(&self, path: &str, tiers: &[T]) -> Result<(), KeyFileError> {
        if let Some(tier) = &self.tier
            && !tiers.iter().any(|configured| configured.as_ref() == tier)
        {
            // The value is not quoted: it may be a key that was entered in the wrong place.
            let problem = "unknown tier: it is not in `tiers` of the configuration";
            return Err(key_file_error(&format!("{path}.tier"), problem));
        }
        let mut models = self.models.iter().flatten();
        let is_valid_model = |model: &String| {
            let name = model.strip_suffix('*').unwrap_or(model);
            !model.is_empty() && !name.contains('*')
        };
        if let Some(index) = models.position(|model| !is_valid_model(model)) {
            let problem = "invalid model: write a name, or a prefix followed by one `*`";
            return Err(key_file_error(&format!("{path}.models.{index}"), problem));
        }
        check_limits(path, &self.limits)?;
        if let Some(Err((key, problem))) = self.caps.as_ref().map(RequestCaps::check) {
            return Err(key_file_error(&format!("{path}.caps.{key}"), problem));
        }
        for (index, key) in self.keys.iter().enumerate() {
            let path = format!("{path}.keys.{index}");
            check_name(
                &path,
                &key.name,
                self.keys.iter().take(index).map(|key| &key.name),
            )?;
            check_limits(&path, &key.limits)?;
        }
        Ok(())
    }
}

fn check_name<'a>(
    path: &str,
    name: &String,
    mut earlier_names: impl Iterator<Item = &'a String>,
) -> Result<(), KeyFileError> {
    let path = format!("{path}.name");
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_valid = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(is_allowed);
    if !is_valid || name.starts_with('_') {
        let problem = "invalid name: use 1 to 64 letters, digits, `-`, `_` and `.`, and do not \
                       begin with `_`";
        return Err(key_file_error(&path, problem));
    }
    if earlier_names.any(|other| other == name) {
        return Err(key_file_error(
            &path,
            "duplicate name: another entry of this list has it",
        ));
    }
    Ok(())
}

fn check_limits(path: &str, limits: &UsageLimits) -> Result<(), KeyFileError> {
    let all = [
        ("requests_per_minute", limits.requests_per_minute),
        ("tokens_per_minute", limits.tokens_per_minute),
        ("concurrency", limits.concurrency),
    ];
    match all.iter().find(|(_, limit)| *limit == Some(0)) {
        Some((name, _)) => {
            let problem = "a limit must be 1 or more; leave it out for no limit";
            Err(key_file_error(&format!("{path}.limits.{name}"), problem))
        }
        None => Ok(()),
    }
}

fn key_file_error(path: &str, problem: impl Into<String>) -> KeyFileError {
    KeyFileError {
        path: path.to_owned(),
        problem: problem.into(),
    }
}

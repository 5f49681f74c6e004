//! Schema and validation of the key file, which lists tenants and their API keys.

use super::caps::RequestCaps;
use super::digest::KeyDigest;
use super::usage::UsageLimits;
use crate::continuation::ContinuationMode;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use tokenweir_protocol::openai::Permission;

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
    /// How another backend continues streams of the tenant, with the values of `streams.continuation`. `None`:
    /// the setting of the model applies.
    pub continuation: Option<ContinuationMode>,
    /// Limits of all keys of the tenant together.
    #[serde(default)]
    pub limits: UsageLimits,
    /// Limits per model, for all keys of the tenant together. The keys are model names that clients use, or
    /// prefixes followed by `*`. The longest match of a name applies.
    #[serde(default)]
    pub model_limits: BTreeMap<String, UsageLimits>,
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

/// Maximum number of keys. Each key takes about 300 bytes of memory.
const MAX_KEYS: usize = 200_000;

/// Maximum length of the name of a tenant or a key, in bytes.
const MAX_NAME_BYTES: usize = 64;

impl KeyFile {
    /// Validates the file. Returns the first error. `tiers`: the tiers in the configuration.
    pub fn check<T: AsRef<str>>(&self, tiers: &[T]) -> Result<(), KeyFileError> {
        let mut names = HashSet::new();
        let mut hashes = HashMap::new();
        for (index, tenant) in self.tenants.iter().enumerate() {
            let path = format!("tenants.{index}");
            check_name(&path, &tenant.name, &mut names)?;
            tenant.check(&path, tiers)?;
            for (index, key) in tenant.keys.iter().enumerate() {
                let owner = (key, tenant);
                if let Some((key, tenant)) = hashes.insert(key.hash.lookup_hash(), owner) {
                    let other = format!("`{}` of `{}`", key.name, tenant.name);
                    let problem = format!("duplicate hash: the key {other} has the same hash");
                    return Err(key_file_error(
                        &format!("{path}.keys.{index}.hash"),
                        problem,
                    ));
                }
            }
        }
        if hashes.len() > MAX_KEYS {
            let problem = format!("too many keys: there may be at most {MAX_KEYS}");
            return Err(key_file_error("tenants", problem));
        }
        Ok(())
    }

    /// Merges the tenants of several files. A tenant may have keys in several files, but its settings in one
    /// only.
    pub fn merged(files: Vec<Self>) -> Result<Self, KeyFileError> {
        let mut positions = HashMap::new();
        let mut tenants: Vec<TenantEntry> = Vec::new();
        for tenant in files.into_iter().flat_map(|file| file.tenants) {
            let position = *positions
                .entry(tenant.name.clone())
                .or_insert(tenants.len());
            match tenants.get_mut(position) {
                Some(known) => known.merge(tenant)?,
                None => tenants.push(tenant),
            }
        }
        Ok(Self { tenants })
    }
}

impl TenantEntry {
    /// Adds the keys of `other`, and takes over the settings of `other` if `self` has none.
    fn merge(&mut self, mut other: Self) -> Result<(), KeyFileError> {
        let mut keys = std::mem::take(&mut self.keys);
        keys.append(&mut other.keys);
        let name_only = Self {
            name: self.name.clone(),
            ..Self::default()
        };
        if other != name_only {
            if *self != name_only {
                let name = &self.name;
                let problem = format!("the tenant `{name}` has settings in two files: keep one");
                return Err(key_file_error("tenants", problem));
            }
            *self = other;
        }
        self.keys = keys;
        Ok(())
    }

    fn check<T: AsRef<str>>(&self, path: &str, tiers: &[T]) -> Result<(), KeyFileError> {
        if let Some(tier) = &self.tier
            && !tiers.iter().any(|configured| configured.as_ref() == tier)
        {
            // The error does not quote the value, which may be a misplaced key.
            let problem = "unknown tier: it is not in `tiers` of the configuration";
            return Err(key_file_error(&format!("{path}.tier"), problem));
        }
        let mut models = self.models.iter().flatten();
        if let Some(index) = models.position(|model| !is_model_pattern(model)) {
            return Err(key_file_error(
                &format!("{path}.models.{index}"),
                INVALID_MODEL,
            ));
        }
        check_limits(&format!("{path}.limits"), &self.limits)?;
        for (model, limits) in &self.model_limits {
            if !is_model_pattern(model) {
                return Err(key_file_error(
                    &format!("{path}.model_limits"),
                    INVALID_MODEL,
                ));
            }
            check_limits(&format!("{path}.model_limits.{model}"), limits)?;
        }
        if let Some(Err((key, problem))) = self.caps.as_ref().map(RequestCaps::check) {
            return Err(key_file_error(&format!("{path}.caps.{key}"), problem));
        }
        let mut names = HashSet::new();
        for (index, key) in self.keys.iter().enumerate() {
            let path = format!("{path}.keys.{index}");
            check_name(&path, &key.name, &mut names)?;
            check_limits(&format!("{path}.limits"), &key.limits)?;
        }
        Ok(())
    }
}

/// The problem of a text that is no model name or pattern.
const INVALID_MODEL: &str = "invalid model: write a name, or a prefix followed by one `*`";

fn is_model_pattern(model: &str) -> bool {
    let name = model.strip_suffix('*').unwrap_or(model);
    !model.is_empty() && !name.contains('*')
}

fn check_name<'a>(
    path: &str,
    name: &'a str,
    earlier_names: &mut HashSet<&'a str>,
) -> Result<(), KeyFileError> {
    let path = format!("{path}.name");
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_valid = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(is_allowed);
    if !is_valid || name.starts_with('_') {
        let problem = "invalid name: use 1 to 64 letters, digits, `-`, `_` and `.`, and do not \
                       begin with `_`";
        return Err(key_file_error(&path, problem));
    }
    if !earlier_names.insert(name) {
        return Err(key_file_error(
            &path,
            "duplicate name: another entry of this list has it",
        ));
    }
    Ok(())
}

fn check_limits(path: &str, limits: &UsageLimits) -> Result<(), KeyFileError> {
    let checked = limits.check();
    checked.map_err(|(name, problem)| key_file_error(&format!("{path}.{name}"), problem))
}

fn key_file_error(path: &str, problem: impl Into<String>) -> KeyFileError {
    KeyFileError {
        path: path.to_owned(),
        problem: problem.into(),
    }
}

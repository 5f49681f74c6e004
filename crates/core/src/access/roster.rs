//! The file of tenants and keys, as it is written, and the rules that it must keep.

use super::digest::KeyDigest;
use super::limits::Limits;
use crate::openai::control::Permission;
use serde::Deserialize;
use std::collections::HashMap;

/// Who may come in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roster {
    /// The tenants.
    pub tenants: Vec<TenantEntry>,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantEntry {
    /// What logs, spans and metrics call it.
    pub name: String,
    /// Its tier. `None`: as the configuration tells tiers.
    #[serde(default)]
    pub tier: Option<String>,
    /// The models that it may use: names, or prefixes that end with `*`. `None`: all.
    #[serde(default)]
    pub models: Option<Vec<String>>,
    /// The engine-control fields that it may use, besides those that everybody may.
    #[serde(default)]
    pub allow: Vec<Permission>,
    /// What all of its keys together may take.
    #[serde(default)]
    pub limits: Limits,
    /// Its keys.
    pub keys: Vec<KeyEntry>,
}

/// A key.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// What logs call it.
    pub name: String,
    /// Its digest.
    pub hash: KeyDigest,
    /// What it may take, of what its tenant may.
    #[serde(default)]
    pub limits: Limits,
}

/// A rule that is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The value at fault, such as `tenants.0.name`.
    pub path: String,
    /// What is wrong with it. Holds no part of a hash.
    pub problem: String,
}

/// Most tenants: each is a label value of metrics.
pub(super) const MAX_TENANTS: usize = 1_000;

/// Longest name, in bytes.
const MAX_NAME: usize = 64;

// === impl Roster ===

impl Roster {
    /// The first rule that is broken. Tenants may only have tiers that are in this list.
    pub fn check<T: AsRef<str>>(&self, tiers: &[T]) -> Result<(), Wrong> {
        if self.tenants.len() > MAX_TENANTS {
            let problem = format!("each tenant has series of its own; no more than {MAX_TENANTS}");
            return Err(wrong("tenants", problem));
        }
        let mut hashes = HashMap::new();
        for (index, tenant) in self.tenants.iter().enumerate() {
            let path = format!("tenants.{index}");
            let earlier = self.tenants.iter().take(index).map(|tenant| &tenant.name);
            name_is_usable(&path, &tenant.name, earlier)?;
            tenant.check(&path, tiers)?;
            for (index, key) in tenant.keys.iter().enumerate() {
                let owner = format!("`{}` of `{}`", key.name, tenant.name);
                if let Some(other) = hashes.insert(key.hash.place(), owner) {
                    let problem = format!("this is already the hash of the key {other}");
                    return Err(wrong(&format!("{path}.keys.{index}.hash"), problem));
                }
            }
        }
        Ok(())
    }
}

impl TenantEntry {
    fn check<T: AsRef<str>>(&self, path: &str, tiers: &[T]) -> Result<(), Wrong> {
        if let Some(tier) = &self.tier
            && !tiers.iter().any(|known| known.as_ref() == tier)
        {
            // What stands there is not quoted: somebody may have put a key there.
            let problem = "this is not a tier of `tiers` in the configuration";
            return Err(wrong(&format!("{path}.tier"), problem));
        }
        let mut models = self.models.iter().flatten();
        let is_pattern = |model: &String| {
            let name = model.strip_suffix('*').unwrap_or(model);
            !model.is_empty() && !name.contains('*')
        };
        if let Some(index) = models.position(|model| !is_pattern(model)) {
            let problem = "a model is a name, or the beginning of one and a `*`";
            return Err(wrong(&format!("{path}.models.{index}"), problem));
        }
        limits_are_usable(path, &self.limits)?;
        for (index, key) in self.keys.iter().enumerate() {
            let path = format!("{path}.keys.{index}");
            name_is_usable(&path, &key.name, self.keys.iter().take(index).map(|key| &key.name))?;
            limits_are_usable(&path, &key.limits)?;
        }
        Ok(())
    }
}

fn name_is_usable<'a>(
    path: &str,
    name: &String,
    mut earlier: impl Iterator<Item = &'a String>,
) -> Result<(), Wrong> {
    let path = format!("{path}.name");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_plain);
    if !is_name || name.starts_with('_') {
        let problem = "a name has 1 to 64 letters, digits and any of `-_.`, and no `_` before them";
        return Err(wrong(&path, problem));
    }
    if earlier.any(|other| other == name) {
        return Err(wrong(&path, "this name stands here twice"));
    }
    Ok(())
}

fn limits_are_usable(path: &str, limits: &Limits) -> Result<(), Wrong> {
    let all = [
        ("requests_per_minute", limits.requests_per_minute),
        ("tokens_per_minute", limits.tokens_per_minute),
        ("concurrency", limits.concurrency),
    ];
    match all.iter().find(|(_, limit)| *limit == Some(0)) {
        Some((name, _)) => {
            let problem = "this must be 1 or more; leave it out for no limit";
            Err(wrong(&format!("{path}.limits.{name}"), problem))
        }
        None => Ok(()),
    }
}

fn wrong(path: &str, problem: impl Into<String>) -> Wrong {
    Wrong { path: path.to_owned(), problem: problem.into() }
}

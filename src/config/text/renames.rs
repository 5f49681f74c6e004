//! The names of earlier versions with their replacements, from `config/renames.yaml`.

use super::error::{ConfigError, ConfigLocation, ProblemKind};
use super::yaml;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

/// The names in `config/renames.yaml` that the program uses. The file contains further ones for people only.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Renames {
    pub(crate) metrics: Vec<RenamedMetric>,
    pub(crate) words: Vec<RenamedWord>,
    pub(crate) keys: Vec<RenamedKey>,
}

/// A metric of an earlier version.
#[derive(Debug, Deserialize)]
pub(crate) struct RenamedMetric {
    pub(crate) from: String,
    /// The new name. `None`: no metric replaces this one.
    pub(crate) to: Option<String>,
    /// The labels that select this row, with their values. The new metric lacks these labels.
    #[serde(default)]
    pub(crate) when: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// New values of labels, by the old name of the label and then by the old value.
    #[serde(default)]
    pub(crate) values: BTreeMap<String, BTreeMap<String, String>>,
    /// The remedy for operators, if no metric replaces this one.
    #[serde(default)]
    pub(crate) help: String,
}

/// A text in rules and dashboards other than a metric.
#[derive(Debug, Deserialize)]
pub(crate) struct RenamedWord {
    pub(crate) from: String,
    pub(crate) to: String,
}

/// A key of an earlier version.
#[derive(Debug, Deserialize)]
pub(crate) struct RenamedKey {
    /// The path of the key, with `[]` for each item of a list.
    pub(crate) from: String,
    pub(crate) to: Option<String>,
    #[serde(default)]
    pub(crate) values: BTreeMap<String, String>,
    /// The sibling key to which this value is appended, after a colon.
    pub(crate) joins: Option<String>,
    /// The value with which the key can be dropped without an action of the operator.
    pub(crate) default: Option<String>,
    /// Whether the key stays in the file, so that the gateway refuses the file. Dropping the key would leave
    /// data less protected.
    #[serde(default)]
    pub(crate) by_hand: bool,
    /// The remedy for operators, if no key replaces this one.
    help: Option<String>,
}

pub(crate) fn last_key(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// The path of the section that contains a key.
pub(crate) fn section_of(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(section, _)| section)
}

/// The path of an entry with `[]` in place of each index.
pub(crate) fn without_indexes(path: &str) -> String {
    let keys = path.split('.').map(|key| match key.parse::<usize>() {
        Ok(_) => "[]",
        Err(_) => key,
    });
    let keys: Vec<&str> = keys.collect();
    keys.join(".").replace(".[]", "[]")
}

/// If the unknown key of an error is one of an earlier version, adds its replacement to the error.
pub(crate) fn explain(error: ConfigError, text: &str) -> ConfigError {
    let position = match error.location() {
        Some(ConfigLocation::File(_, Some(position))) => *position,
        _ => return error,
    };
    if error.kind() != ProblemKind::UnknownKey {
        return error;
    }
    let entries = yaml::entries(text).unwrap_or_default();
    let Some(entry) = yaml::entry_at(&entries, position, error.kind()) else {
        return error;
    };
    match Renames::shipped().help(&without_indexes(&entry.path)) {
        Some(help) => error.with_help(Some(&help)),
        None => error,
    }
}

impl Renames {
    /// The names of `config/renames.yaml`.
    pub(crate) fn shipped() -> &'static Self {
        static SHIPPED: LazyLock<Renames> = LazyLock::new(|| {
            let text = include_str!("../../../config/renames.yaml");
            let parsed = yaml::parse(text, Path::new("renames.yaml"));
            // A test ensures that the file parses.
            parsed.map(|(renames, _)| renames).unwrap_or_default()
        });
        &SHIPPED
    }

    /// The key of an earlier version with exactly this path.
    pub(crate) fn key(&self, path: &str) -> Option<&RenamedKey> {
        self.keys.iter().find(|key| key.from == path)
    }

    /// The present form of an earlier path. Only its sections and its last key can differ.
    pub(crate) fn current_path(&self, path: &str) -> String {
        if let Some(to) = self.key(path).and_then(|key| key.to.as_ref()) {
            return to.clone();
        }
        match path.rsplit_once('.') {
            Some((section, key)) => {
                // The section of an item is its list, and no list was renamed.
                format!("{}.{key}", self.current_path(section))
            }
            None => path.to_owned(),
        }
    }

    /// The help for an unknown key, whose sections may have earlier or present names.
    fn help(&self, path: &str) -> Option<String> {
        let section = |key: &RenamedKey| self.current_path(section_of(&key.from));
        let is_it = |key: &&RenamedKey| {
            key.from == path
                || last_key(&key.from) == last_key(path) && section(key) == section_of(path)
        };
        let key = self.keys.iter().find(is_it)?;
        if let Some(help) = &key.help {
            return Some(help.clone());
        }
        let to = key.to.as_deref()?;
        if section_of(to) == section(key) {
            return Some(format!("write `{}` in its place", last_key(to)));
        }
        Some(format!(
            "write `{}` of `{}` in its place",
            last_key(to),
            section_of(to)
        ))
    }
}

impl RenamedKey {
    /// The remedy for a key that no other key replaces.
    pub(crate) fn help(&self) -> &str {
        self.help.as_deref().unwrap_or("remove it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_has_consistent_rows() {
        let text = include_str!("../../../config/renames.yaml");
        let (renames, _) = yaml::parse::<Renames>(text, Path::new("renames.yaml")).unwrap();
        assert!(renames.metrics.len() > 30 && renames.keys.len() > 50);
        for metric in &renames.metrics {
            assert_ne!(metric.to.is_none(), metric.help.is_empty(), "{metric:?}");
            let to = metric.to.as_ref();
            let again = renames.metrics.iter().find(|other| Some(&other.from) == to);
            assert!(
                again.is_none_or(|other| other.from == metric.from),
                "{metric:?}"
            );
        }
        for key in &renames.keys {
            let ways = [key.to.is_some(), key.help.is_some()];
            assert!(ways.contains(&true), "{key:?}");
            assert!(
                key.to.as_ref().is_none_or(|to| renames.key(to).is_none()),
                "{key:?}"
            );
        }
    }

    #[test]
    fn earlier_sections_have_present_paths() {
        let renames = Renames::shipped();
        for (earlier, present) in [
            ("health.failures", "circuit_breaker.consecutive_failures"),
            ("health.panic_threshold", "circuit_breaker.panic_threshold"),
            ("models[].terms.idle", "models[].policy.idle"),
            ("drain.delay", "drain.delay"),
        ] {
            assert_eq!(renames.current_path(earlier), present);
        }
        assert_eq!(without_indexes("models.0.terms.12.a"), "models[].terms[].a");
    }
}

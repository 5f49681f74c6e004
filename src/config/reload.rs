//! Merges a reloaded configuration with the active one: which values apply at once, which need a restart, and
//! which keys have changed.

use super::load::LoadedConfig;
use super::root::Config;
use super::text::yaml::child_path;
use serde_json::Value;
use std::collections::BTreeMap;
use tokenweir_engine::address::BackendAddress;

/// The result of a reload. Keys are paths, such as `drain.timeout`. An entry of a list has its name
/// or its URL in the path, as in `backends[gpu-0].weight`.
#[derive(Debug, Clone, PartialEq)]
pub struct ReloadOutcome {
    /// The configuration to apply.
    pub loaded: LoadedConfig,
    /// The changed keys whose new values apply at once.
    pub changed: Vec<String>,
    /// The changed keys whose new values apply only after a restart.
    pub unapplied: Vec<String>,
}

impl LoadedConfig {
    /// Merges a reloaded configuration with this active one.
    pub fn reload(&self, new: Self) -> ReloadOutcome {
        let config = self.config.reloaded(&new.config);
        let changed = changed_keys(&self.config, &config);
        let unapplied = changed_keys(&config, &new.config);
        ReloadOutcome {
            loaded: Self { config, ..new },
            changed,
            unapplied,
        }
    }
}

/// The paths of the keys whose values differ.
fn changed_keys(old: &Config, new: &Config) -> Vec<String> {
    let value = |config| serde_json::to_value(config).unwrap_or_default();
    let mut changed = Vec::new();
    compare_values("", &value(old), &value(new), &mut changed);
    changed
}

/// Adds to `changed` the paths, at and below `path`, whose values differ between `old` and `new`.
fn compare_values(path: &str, old: &Value, new: &Value, changed: &mut Vec<String>) {
    match (old, new) {
        (old, new) if old == new => {}
        (Value::Object(old_fields), Value::Object(new_fields)) => {
            let removed = old_fields
                .keys()
                .filter(|key| !new_fields.contains_key(*key));
            changed.extend(removed.map(|key| child_path(path, key)));
            for (key, new) in new_fields {
                let old = old_fields.get(key).unwrap_or(&Value::Null);
                compare_values(&child_path(path, key), old, new, changed);
            }
        }
        (Value::Array(old_items), Value::Array(new_items)) => {
            match (index_by_name(old_items), index_by_name(new_items)) {
                (Some(old), Some(new)) => compare_entries(path, &old, &new, changed),
                _ => changed.push(path.to_owned()),
            }
        }
        _ => changed.push(path.to_owned()),
    }
}

/// Compares two lists whose entries have names. Adds the paths of changed, added and removed entries to
/// `changed`. If only the order differs, adds the path of the list.
fn compare_entries(
    path: &str,
    old_entries: &BTreeMap<&str, &Value>,
    new_entries: &BTreeMap<&str, &Value>,
    changed: &mut Vec<String>,
) {
    let previous_count = changed.len();
    for name in old_entries
        .keys()
        .filter(|name| !new_entries.contains_key(*name))
    {
        let name = shown_name(name, old_entries[name]);
        changed.push(format!("{path}[{name}] removed"));
    }
    for (name, new) in new_entries {
        let entry = format!("{path}[{}]", shown_name(name, new));
        match old_entries.get(name) {
            Some(old) => compare_values(&entry, old, new, changed),
            None => changed.push(format!("{entry} added")),
        }
    }
    if changed.len() == previous_count {
        changed.push(format!("{path} in another order"));
    }
}

/// The entries of a list by name. `None`: an entry has no name.
fn index_by_name(items: &[Value]) -> Option<BTreeMap<&str, &Value>> {
    items
        .iter()
        .map(|item| Some((entry_name(item)?, item)))
        .collect()
}

/// The name of a list entry: its `name` or, if missing, its `url` or `tier`.
fn entry_name(item: &Value) -> Option<&str> {
    ["name", "url", "tier"]
        .iter()
        .find_map(|key| item.get(key)?.as_str())
}

/// The name of an entry for operators. A URL is shown without its path, because the path of the URL of a webhook can
/// be a secret.
fn shown_name<'a>(name: &'a str, entry: &Value) -> &'a str {
    if entry["url"] == name {
        BackendAddress::split_path(name).0
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parse;

    fn reload(old: &str, new: &str) -> ReloadOutcome {
        parse(old).unwrap().reload(parse(new).unwrap())
    }

    #[test]
    fn the_path_of_a_webhook_is_not_shown() {
        for url in ["https://hooks.example.com", "hooks:9000"] {
            let webhook = |path| format!("webhooks: [{{ url: '{url}/{path}' }}]\n");
            let changed = reload(&webhook("first"), &webhook("second?key=third")).changed;
            let entry = format!("webhooks[{url}]");
            assert_eq!(
                changed,
                [format!("{entry} removed"), format!("{entry} added")]
            );
        }
    }

    #[test]
    fn changed_keys_are_reported_without_values() {
        let old = "backends: [{ url: a:1, name: x, api_key: { env: OLD } }, { url: b:1 }]\n";
        let new = "backends: [{ url: c:1, weight: 2 }, \
                   { url: a:1, name: x, api_key: { env: NEW } }]\n\
                   routing: { policy: p2c }\ndrain: { timeout: 1m }\n";
        let ReloadOutcome {
            changed,
            unapplied,
            loaded,
        } = reload(old, new);
        assert_eq!(
            changed,
            [
                "backends[http://b:1] removed",
                "backends[http://c:1] added",
                "backends[x].api_key.env",
                "drain.timeout",
                "routing.policy",
            ]
        );
        assert_eq!(unapplied, [""; 0]);
        assert_eq!(loaded.config.backends.len(), 2);
    }

    #[test]
    fn keys_that_need_a_restart_are_kept() {
        let old = "listen: 127.0.0.1:1\nrouting: { decision_log_size: 5 }\nlog: { level: warn, format: json }\n";
        let new = "listen: 127.0.0.1:2\nrouting: { decision_log_size: 6 }\nlog: { level: info, format: human }\n\
                   usage: passive\n";
        let ReloadOutcome {
            changed,
            unapplied,
            loaded,
        } = reload(old, new);
        assert_eq!(changed, ["log.level", "usage"]);
        assert_eq!(
            unapplied,
            ["listen", "log.format", "routing.decision_log_size"]
        );
        assert_eq!(
            (
                loaded.config.listen.port(),
                loaded.config.routing.decision_log_size
            ),
            (1, 5)
        );
    }

    #[test]
    fn the_same_text_changes_nothing() {
        let text = "backends: [{ url: a:1 }]\nmodels: [{ name: a, served_as: b }]\n";
        let reloaded = reload(text, text);
        assert_eq!(
            (reloaded.changed, reloaded.unapplied),
            (Vec::new(), Vec::new())
        );
    }

    #[test]
    fn another_order_of_backends_is_a_change() {
        let (old, new) = ("backends: [a:1, b:1]", "backends: [b:1, a:1]");
        let listed = |text: &str| {
            text.replace("a:1", "{ url: a:1 }")
                .replace("b:1", "{ url: b:1 }")
        };
        assert_eq!(
            reload(&listed(old), &listed(new)).changed,
            ["backends in another order"]
        );
    }
}

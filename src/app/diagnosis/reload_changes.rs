//! Finds what the last reload changed: keys of the configuration with their values, and keys of clients.

use crate::admin::Admin;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokenweir_diagnose::RecentReload;
use tokenweir_engine::address::BackendAddress;
use tokenweir_request::access::ApiKeys;

/// Finds what a reload changes, by comparing the documents before and after it.
#[derive(Default)]
pub(super) struct ReloadObserver {
    view: Option<Arc<Value>>,
    keys: Option<Arc<ApiKeys>>,
    last: Option<LastReload>,
}

struct LastReload {
    at: Instant,
    clock: String,
    changed: String,
}

/// Maximum number of changes that are named, and maximum length of a value in characters.
const MAX_NAMED: usize = 3;
const MAX_VALUE_CHARACTERS: usize = 40;
const DEFAULT: &str = "default";

impl ReloadObserver {
    /// The last reload that changed a setting. `None`: no reload has changed one.
    pub(super) fn observe(
        &mut self,
        admin: &Admin,
        now: Instant,
        wall_time: SystemTime,
    ) -> Option<RecentReload> {
        let mut changes = Vec::new();
        let view = admin.configuration.view();
        let before = self.view.replace(view.clone());
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(before, &view)) {
            compare("", before.get("config"), view.get("config"), &mut changes);
        }
        let keys = admin.proxy.access.keys();
        let before = std::mem::replace(&mut self.keys, keys);
        if let (Some(before), Some(after)) = (&before, &self.keys)
            && !Arc::ptr_eq(before, after)
        {
            changes.extend(removed_keys(before, after));
            compare_limits(before, after, &mut changes);
        }
        if !changes.is_empty() {
            let clock = humantime::format_rfc3339_seconds(wall_time).to_string();
            let clock = clock.get(11..19).unwrap_or_default();
            self.last = Some(LastReload {
                at: now,
                clock: format!("{clock} UTC"),
                changed: summary(&changes),
            });
        }
        let last = self.last.as_ref()?;
        Some(RecentReload {
            age_seconds: now.saturating_duration_since(last.at).as_secs_f64(),
            clock: last.clock.clone(),
            changed: last.changed.clone(),
        })
    }
}

fn summary(changes: &[String]) -> String {
    let named = changes.iter().take(MAX_NAMED);
    let named = named.cloned().collect::<Vec<_>>().join(", ");
    match changes.len().checked_sub(MAX_NAMED) {
        Some(more) if more > 0 => format!("{named} and {more} more"),
        _ => named,
    }
}

/// The tenants whose keys are missing in the new key file.
fn removed_keys(before: &ApiKeys, after: &ApiKeys) -> Option<String> {
    let names = |keys: &ApiKeys| -> BTreeSet<String> {
        let names = keys
            .identities()
            .map(|it| format!("tenant {}, key {}", it.tenant, it.key));
        names.collect()
    };
    let left = names(after);
    let removed: Vec<String> = names(before).difference(&left).cloned().collect();
    (!removed.is_empty()).then(|| format!("removed from the key file: {}", summary(&removed)))
}

/// Adds the limits of the key file that differ, except those of added tenants.
fn compare_limits(before: &ApiKeys, after: &ApiKeys, changes: &mut Vec<String>) {
    let tenants: BTreeSet<&str> = before.identities().map(|it| &*it.tenant).collect();
    let mut of_before = before.set_limits(None);
    let mut shown = |path: &str, value: Option<u64>, before: Option<u64>| {
        let text = |limit: Option<u64>| limit.map_or("not set".to_owned(), |it| it.to_string());
        if value != before {
            changes.push(format!("{path} {}, before {}", text(value), text(before)));
        }
    };
    for (path, value) in after.set_limits(None) {
        let before = of_before.remove(&path);
        let is_of = |tenant: &&str| path.starts_with(&format!("tenants[{tenant}]."));
        if before.is_some() || tenants.iter().any(is_of) {
            shown(&path, Some(value), before);
        }
    }
    for (path, value) in of_before {
        shown(&path, None, Some(value));
    }
}

/// Adds the differences of two documents of `/config` at `path`.
fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<String>) {
    let is_group = |value: Option<&Value>| value.is_some_and(|value| !is_leaf(value));
    if is_group(before) || is_group(after) {
        let is_list = [before, after].into_iter().flatten().any(Value::is_array);
        let of_before = children(before);
        let of_after = children(after);
        let names: BTreeSet<&String> = of_before.keys().chain(of_after.keys()).collect();
        for name in names {
            let path = if is_list {
                format!("{path}[{name}]")
            } else if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            let before = of_before.get(name).copied();
            compare(&path, before, of_after.get(name).copied(), changes);
        }
        return;
    }
    // Default values of an added or removed entry are not reported.
    let is_default = |value: Option<&Value>| value.is_none_or(|value| value["source"] == DEFAULT);
    let is_entry = before.is_none() || after.is_none();
    if is_entry && is_default(before) && is_default(after) {
        return;
    }
    let after = text_of(after);
    let before = text_of(before);
    if after == before {
        return;
    }
    let after = shown(path, &after);
    let before = shown(path, &before);
    changes.push(if after == before {
        format!("{path} changed")
    } else {
        format!("{path} {after}, before {before}")
    });
}

/// Whether a value of the document is a leaf, which has the members `value` and `source`.
fn is_leaf(value: &Value) -> bool {
    value.get("value").is_some() && value.get("source").is_some()
}

fn text_of(leaf: Option<&Value>) -> String {
    match leaf.map(|leaf| &leaf["value"]) {
        None | Some(Value::Null) => "not set".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// The text of the value at `path`, cut. A URL is shown without its path, which can be a secret.
fn shown(path: &str, text: &str) -> String {
    let is_url = path.ends_with("url") || text.contains("://");
    let text = if is_url {
        BackendAddress::split_path(text).0
    } else {
        text
    };
    text.chars().take(MAX_VALUE_CHARACTERS).collect()
}

/// The members of a group. Items of a list have the name of their member `name`, or their number.
fn children(value: Option<&Value>) -> BTreeMap<String, &Value> {
    let name_of = |item: &Value| Some(item.pointer("/name/value")?.as_str()?.to_owned());
    match value {
        Some(Value::Object(members)) if !value.is_some_and(is_leaf) => {
            let members = members.iter();
            members.map(|(name, value)| (name.clone(), value)).collect()
        }
        Some(Value::Array(items)) => {
            let items = items.iter().enumerate();
            let named = |(number, item): (usize, _)| {
                (name_of(item).unwrap_or_else(|| number.to_string()), item)
            };
            items.map(named).collect()
        }
        _ => BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokenweir_request::access::KeyFile;

    #[test]
    fn a_changed_limit_of_a_tenant_is_named() {
        let keys = |limits: Value| {
            let hash = format!("sha256:{}", "0".repeat(64));
            let file = json!({ "tenants": [{
                "name": "etl",
                "limits": limits,
                "keys": [{ "name": "k", "hash": hash }],
            }] });
            let file: KeyFile = serde_json::from_value(file).unwrap();
            ApiKeys::new(&file, &ApiKeys::default())
        };
        let before = keys(json!({ "tokens_per_minute": 2_000_000, "concurrency": 9 }));
        let after = keys(json!({ "tokens_per_minute": 2_000, "requests_per_day": 7 }));
        let mut changes = Vec::new();
        compare_limits(&before, &after, &mut changes);
        let expected = [
            "tenants[etl].limits.requests_per_day 7, before not set",
            "tenants[etl].limits.tokens_per_minute 2000, before 2000000",
            "tenants[etl].limits.concurrency not set, before 9",
        ];
        assert_eq!(changes, expected);
        changes.clear();
        compare_limits(&ApiKeys::default(), &after, &mut changes);
        assert!(changes.is_empty(), "the tenant is new");
    }

    #[test]
    fn the_path_of_a_url_is_not_shown() {
        let change = |before: &str, after: &str| {
            let document =
                |url| json!({ "webhooks": [{ "url": { "value": url, "source": "file" } }] });
            let mut changes = Vec::new();
            let before = document(before);
            compare("", Some(&before), Some(&document(after)), &mut changes);
            changes.join("; ")
        };
        let path = "webhooks[0].url";
        assert_eq!(change("a:1/secret", "a:1/other"), format!("{path} changed"));
        let expected = format!("{path} https://b, before a:1");
        assert_eq!(change("a:1/secret", "https://b/other?c=d"), expected);
    }

    #[test]
    fn a_changed_key_has_its_path_and_values() {
        let leaf = |value: Value| json!({ "value": value, "source": "file" });
        let document = |served_as: Value, timeout: &str| {
            json!({
                "models": [{ "name": leaf(json!("llama")), "served_as": leaf(served_as) }],
                "timeouts": { "total": leaf(json!(timeout)) },
            })
        };
        let before = document(Value::Null, "10m");
        let after = document(json!("llama-instruct"), "1s");
        let mut changes = Vec::new();
        compare("", Some(&before), Some(&after), &mut changes);
        let expected = [
            "models[llama].served_as llama-instruct, before not set",
            "timeouts.total 1s, before 10m",
        ];
        assert_eq!(changes, expected);
        changes.clear();
        compare("", Some(&before), Some(&before), &mut changes);
        assert!(changes.is_empty());
        let none = json!({ "models": leaf(json!([])), "timeouts": before["timeouts"] });
        compare("", Some(&none), Some(&before), &mut changes);
        let expected = ["models[llama].name llama, before not set"];
        assert_eq!(changes, expected);
    }
}

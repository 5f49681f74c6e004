//! What the last reload changed: keys of the configuration with their values, and keys of clients.

use crate::admin::Admin;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use tokenweir_diagnose::RecentReload;
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

impl ReloadObserver {
    /// The last reload that changed something. `None`: there was none.
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

/// Adds the differences of two documents of `/config` at `path`. A leaf has the members `value` and `source`.
fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<String>) {
    let shown_before = before.map(shown);
    let shown_after = after.map(shown);
    if let (Some(None), Some(None)) = (&shown_before, &shown_after) {
        let names = children(before).chain(children(after));
        let names: BTreeSet<String> = names.map(|(name, _)| name).collect();
        for name in names {
            let child = |parent| children(parent).find(|(other, _)| *other == name);
            let of_before = child(before).map(|(_, value)| value);
            let of_after = child(after).map(|(_, value)| value);
            let path = match before {
                Some(Value::Array(_)) => format!("{path}[{name}]"),
                _ if path.is_empty() => name,
                _ => format!("{path}.{name}"),
            };
            compare(&path, of_before, of_after, changes);
        }
        return;
    }
    if shown_before == shown_after {
        return;
    }
    let words = |shown: Option<Option<String>>, of_group: &str| match shown {
        Some(Some(value)) => value,
        Some(None) => of_group.to_owned(),
        None => "not set".to_owned(),
    };
    let after = words(shown_after, "set");
    let before = words(shown_before, "set");
    changes.push(format!("{path} {after}, before {before}"));
}

/// The value of a leaf as text. `None`: it is a group of values.
fn shown(value: &Value) -> Option<String> {
    let is_leaf = value.get("value").is_some() && value.get("source").is_some();
    if !is_leaf {
        return None;
    }
    let text = match &value["value"] {
        Value::Null => "not set".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Some(text.chars().take(MAX_VALUE_CHARACTERS).collect())
}

/// The members of a group. Items of a list have the name of their member `name`, or their number.
fn children(value: Option<&Value>) -> Box<dyn Iterator<Item = (String, &Value)> + '_> {
    match value {
        Some(Value::Object(members)) => {
            Box::new(members.iter().map(|(name, value)| (name.clone(), value)))
        }
        Some(Value::Array(items)) => Box::new(items.iter().enumerate().map(|(number, item)| {
            let name = item.pointer("/name/value").and_then(Value::as_str);
            (name.map_or_else(|| number.to_string(), str::to_owned), item)
        })),
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        assert_eq!(changes, ["models set, before []"]);
    }
}

//! Finds the settings of the gateway that can end requests or make them wait, for the diagnosis.

use serde_json::Value;
use tokenweir_diagnose::{DiagnosisSample, LIMIT_SETTINGS, SettingValue};
use tokenweir_protocol::units::duration;

/// KV usage below which a backend has room for more requests.
const LOW_KV_USAGE: f64 = 0.75;

/// The values of the settings that verdicts name, from the document of `/config`. Unset settings are omitted. A
/// shorter timeout of a model replaces the timeout of all requests.
pub(super) fn set_values(view: &Value) -> Vec<SettingValue> {
    let value_of = |name: &'static str| {
        let pointer = format!("/config/{}", name.replace('.', "/"));
        let common = view.pointer(&pointer).and_then(|it| setting(name, it));
        let of_models = match name {
            "stalls.abort_after" => Some("idle"),
            name => name.strip_prefix("timeouts."),
        };
        let shortest = of_models.and_then(|key| shortest_of_models(view, name, key));
        match (common, shortest) {
            (Some(common), Some(shortest)) if shortest.seconds < common.seconds => Some(shortest),
            (common, shortest) => common.or(shortest),
        }
    };
    LIMIT_SETTINGS.into_iter().filter_map(value_of).collect()
}

/// The name under which backends must list a model of the configuration. `None`: the same name.
pub(super) fn served_as(view: &Value, model: &str) -> Option<String> {
    let models = view.pointer("/config/models")?.as_array()?;
    let name_of = |entry: &Value| entry.pointer("/name/value")?.as_str().map(str::to_owned);
    let entry = models
        .iter()
        .find(|entry| name_of(entry).as_deref() == Some(model))?;
    let name = entry.pointer("/served_as/value")?.as_str()?;
    Some(name.to_owned())
}

/// The value of a setting in the document of `/config`. `None`: it is not set.
fn setting(name: &'static str, annotated: &Value) -> Option<SettingValue> {
    let value = match annotated.get("value")? {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let seconds = duration::parse(&value).ok();
    Some(SettingValue {
        name,
        seconds: seconds.map(|time| time.as_secs_f64()),
        value,
    })
}

/// The shortest timeout `key` in the policies of models.
fn shortest_of_models(view: &Value, name: &'static str, key: &str) -> Option<SettingValue> {
    let models = view.pointer("/config/models")?.as_array()?;
    let of_model = |model: &Value| {
        let found = setting(name, model.pointer(&format!("/policy/{key}"))?)?;
        let model = model.pointer("/name/value").and_then(Value::as_str);
        let value = format!("{} for {}", found.value, model.unwrap_or("a model"));
        Some(SettingValue { value, ..found })
    };
    let seconds = |found: &SettingValue| found.seconds.unwrap_or(f64::INFINITY);
    models
        .iter()
        .filter_map(of_model)
        .min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
}

/// The admission setting that keeps further requests from a backend although no request waits in its engine.
/// `None`: no setting.
pub(super) fn limiting_setting(
    sample: &DiagnosisSample,
    settings: &[SettingValue],
) -> Option<&'static str> {
    let gateway = sample.gateway?;
    let page = sample.page?;
    if page.waiting != Some(0.0) {
        return None;
    }
    let limit = |name: &str| {
        let setting = settings.iter().find(|setting| setting.name == name)?;
        setting.value.parse::<f64>().ok()
    };
    let usage = page.kv_usage.unwrap_or_default();
    if limit("admission.max_in_flight").is_some_and(|most| f64::from(gateway.in_flight) >= most) {
        return Some("admission.max_in_flight");
    }
    // A threshold close to a full cache is reasonable, so it is not reported.
    let is_low = |most: f64| most < LOW_KV_USAGE && usage >= most;
    limit("admission.max_kv_usage").filter(|most| is_low(*most))?;
    Some("admission.max_kv_usage")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_are_read_from_the_active_configuration() {
        let annotated = |value: Value| json!({ "value": value, "source": "file" });
        let view = json!({ "config": {
            "timeouts": { "first_output": annotated(json!("10m")), "total": annotated(Value::Null) },
            "limits": { "memory": annotated(json!("64MiB")) },
            "models": [{ "name": annotated(json!("llama")), "policy": { "first_output": annotated(json!("1s")) } }],
        }});
        let values = set_values(&view).into_iter();
        let values: Vec<_> = values.map(|it| (it.name, it.value, it.seconds)).collect();
        let expected = [
            (
                "timeouts.first_output",
                "1s for llama".to_owned(),
                Some(1.0),
            ),
            ("limits.memory", "64MiB".to_owned(), None),
        ];
        assert_eq!(values, expected);
    }
}

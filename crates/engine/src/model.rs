//! Parses the model list of a backend, which is the response of its `/v1/models`.
//!
//! A backend can list thousands of LoRA adapters. To save memory, each entry is stored as JSON text, and the
//! number of models and the length of their ids are limited.

use crate::dialect::EngineKind;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

/// A model that a backend serves.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedModel {
    /// The name that clients use in `model`.
    pub id: Arc<str>,
    /// Id of the base model of a LoRA adapter. `None`: the model is not a LoRA adapter.
    pub parent: Option<Arc<str>>,
    /// The engine kind, derived from `owned_by` of the entry. `None`: no known engine writes this owner.
    pub server: Option<EngineKind>,
    /// `max_model_len` of the entry: the maximum number of prompt and output tokens together. A LoRA adapter
    /// has the value of its base model. `None`: unknown.
    pub max_len: Option<u32>,
    /// The JSON object of the model in `/v1/models`.
    pub entry: ModelEntry,
    /// Hash of all fields of the entry as the backend sent it, except [`VOLATILE_FIELDS`].
    stable_hash: u64,
}

/// An entry of `/v1/models` as JSON text: the text that the backend sent, or a copy with another `id` or
/// context length.
#[derive(Debug, Clone)]
pub struct ModelEntry(Arc<RawValue>);

/// The models of one `/v1/models` response, up to the limits of their number and id length.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelList {
    /// The models, in the order of the response.
    pub models: Arc<[ServedModel]>,
    /// Number of ignored entries: those after the first [`ModelList::MOST`] models.
    pub excess_models: usize,
    /// Number of ignored models: those with an id longer than [`ModelList::MAX_ID_BYTES`].
    pub too_long: usize,
}

#[derive(Deserialize)]
struct BackendModelListResponse {
    data: ModelList,
    /// The ids of the models that a gateway lists although none of its backends serves them now. Only a backend
    /// that is a gateway has this field.
    #[serde(default)]
    unavailable_models: Value,
}

/// The field of an entry with the context length of the model, as vLLM names it.
const MAX_LEN: &str = "max_model_len";
/// Fields of an entry that vLLM generates anew for every response.
const VOLATILE_FIELDS: [&str; 2] = ["created", "permission"];

impl ModelList {
    /// Maximum number of models of one backend. The gateway routes no requests for further models to the
    /// backend.
    pub const MOST: usize = 10_000;
    /// Maximum length of a model id, in bytes.
    pub const MAX_ID_BYTES: usize = 256;

    /// Parses a `/v1/models` response. Models that a gateway lists as unavailable are left out, because another
    /// backend may serve them. If all are unavailable, they are kept. `None`: the response is not a model list.
    pub fn read(response: &[u8]) -> Option<Self> {
        let BackendModelListResponse {
            data,
            unavailable_models,
        } = serde_json::from_slice(response).ok()?;
        let unavailable = unavailable_models
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let is_available = |model: &&ServedModel| !unavailable.iter().any(|id| *id == *model.id);
        if unavailable.is_empty() || !data.models.iter().any(|model| is_available(&model)) {
            return Some(data);
        }
        let models = data.models.iter().filter(is_available).cloned().collect();
        Some(Self { models, ..data })
    }
}

impl<'de> Deserialize<'de> for ModelList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModelListVisitor;

        impl<'de> Visitor<'de> for ModelListVisitor {
            type Value = ModelList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of models")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<ModelList, A::Error> {
                let mut list = ModelList::default();
                let mut models = Vec::<ServedModel>::new();
                while let Some(entry) = entries.next_element::<&RawValue>()? {
                    if models.len() == ModelList::MOST {
                        list.excess_models += 1;
                        continue;
                    }
                    let Some(mut model) = ServedModel::parse(entry) else {
                        continue;
                    };
                    if model.id.len() > ModelList::MAX_ID_BYTES {
                        list.too_long += 1;
                        continue;
                    }
                    // Consecutive adapters of one base model share one allocation of its id.
                    if let Some(last) = models.last().filter(|last| last.parent == model.parent) {
                        model.parent.clone_from(&last.parent);
                    }
                    models.push(model);
                }
                inherit_lengths(&mut models);
                list.models = models.into();
                Ok(list)
            }
        }

        deserializer.deserialize_seq(ModelListVisitor)
    }
}

/// Gives each LoRA adapter without a context length the context length of its base model.
fn inherit_lengths(models: &mut [ServedModel]) {
    let is_without = |model: &ServedModel| model.parent.is_some() && model.max_len.is_none();
    if !models.iter().any(is_without) {
        return;
    }
    let known = models
        .iter()
        .filter_map(|model| Some((model.id.clone(), model.max_len?)));
    let known: BTreeMap<Arc<str>, u32> = known.collect();
    for model in models.iter_mut().filter(|model| is_without(model)) {
        model.max_len = model
            .parent
            .as_ref()
            .and_then(|parent| known.get(parent).copied());
    }
}

impl ServedModel {
    /// Parses an entry of `/v1/models`. `None`: the entry has no id.
    fn parse(entry: &RawValue) -> Option<Self> {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_str(entry.get()).ok()?;
        let text_field = |field| -> Option<String> {
            serde_json::from_str(fields.get(field).map(|value| value.get())?).ok()
        };
        let mut hasher = Xxh3Default::new();
        for (name, value) in fields
            .iter()
            .filter(|(name, _)| !VOLATILE_FIELDS.contains(&name.as_str()))
        {
            hasher.update(name.as_bytes());
            // 0xff does not occur in UTF-8, so it separates two texts.
            hasher.update(&[0xff]);
            hasher.update(value.get().as_bytes());
            hasher.update(&[0xff]);
        }
        Some(Self {
            id: text_field("id")?.into(),
            parent: text_field("parent").map(Arc::from),
            server: text_field("owned_by").and_then(|owner| EngineKind::from_owned_by(&owner)),
            max_len: fields
                .get(MAX_LEN)
                .and_then(|value| serde_json::from_str(value.get()).ok())
                .filter(|length| *length > 0),
            entry: ModelEntry(entry.to_owned().into()),
            stable_hash: hasher.digest(),
        })
    }

    /// Returns the model with another id. Its entry has the new id too.
    pub fn called(&self, name: &Arc<str>) -> Self {
        if self.id == *name {
            return self.clone();
        }
        let entry = self.entry.with("id", name.as_ref().into());
        Self {
            id: name.clone(),
            entry,
            ..self.clone()
        }
    }

    /// The entry of a model that the configuration names, before a backend has listed it.
    pub fn entry_of_name(name: &str) -> Option<ModelEntry> {
        let entry = json!({ "id": name, "object": "model", "created": 0, "owned_by": "tokenweir" });
        serde_json::value::to_raw_value(&entry)
            .ok()
            .map(|text| ModelEntry(text.into()))
    }

    /// Returns a copy of the model's entry with another context length.
    pub fn entry_with_length(&self, length: u32) -> ModelEntry {
        self.entry.with(MAX_LEN, length.into())
    }

    /// Whether two lists have equal entries in one order. Fields that vLLM generates anew for every response
    /// are not compared.
    pub fn are_equivalent(left: &[Self], right: &[Self]) -> bool {
        left.iter()
            .map(|model| model.stable_hash)
            .eq(right.iter().map(|model| model.stable_hash))
    }
}

impl ModelEntry {
    /// The value of a field of the entry. `None`: the entry does not have the field.
    pub fn get(&self, field: &str) -> Option<Value> {
        let Ok(Value::Object(mut fields)) = serde_json::from_str(self.0.get()) else {
            return None;
        };
        fields.remove(field)
    }

    /// A copy of the entry with another value of this field.
    fn with(&self, field: &str, value: Value) -> Self {
        let mut entry: Value = serde_json::from_str(self.0.get()).unwrap_or_default();
        if let Some(entry) = entry.as_object_mut() {
            entry.insert(field.to_owned(), value);
        }
        // Every JSON value can be serialized, so this cannot fail.
        serde_json::value::to_raw_value(&entry)
            .map_or_else(|_| self.clone(), |text| Self(text.into()))
    }
}

impl PartialEq for ModelEntry {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Serialize for ModelEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawValue::serialize(&self.0, serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_models_are_omitted_unless_all_are_unavailable() {
        for (unavailable, expected) in [
            (json!(["b"]), &["a"][..]),
            (json!(["a", "b"]), &["a", "b"]),
            (json!("b"), &["a", "b"]),
        ] {
            let data = json!([{ "id": "a" }, { "id": "b" }]);
            let list = json!({ "data": data, "unavailable_models": unavailable }).to_string();
            let models = ModelList::read(list.as_bytes()).unwrap().models;
            let ids: Vec<_> = models.iter().map(|model| &*model.id).collect();
            assert_eq!(ids, expected, "{list}");
        }
    }

    fn parse_entries(entries: &Value) -> Arc<[ServedModel]> {
        let response = json!({ "object": "list", "data": entries }).to_string();
        ModelList::read(response.as_bytes()).unwrap().models
    }

    #[test]
    fn an_adapter_has_its_base_models_context_length() {
        let models = parse_entries(&json!([
            { "id": "base", "root": "/models/base", "parent": null, "max_model_len": 2048 },
            { "id": "sql", "root": "/adapters/sql", "parent": "base", "max_model_len": null },
            { "object": "nameless" },
        ]));
        let parents = models
            .iter()
            .map(|model| (&*model.id, model.parent.as_deref()));
        assert_eq!(
            parents.collect::<Vec<_>>(),
            [("base", None), ("sql", Some("base"))]
        );
        assert_eq!(models[1].entry.get("root"), Some("/adapters/sql".into()));
        assert_eq!(models[1].entry.get("nothing"), None);
        assert_eq!(models[1].max_len, Some(2048), "that of the base model");
    }

    #[test]
    fn an_invalid_list_is_not_empty() {
        for response in ["", "[]", r#"{"data":{}}"#, r#"{"error":"no"}"#] {
            assert!(ModelList::read(response.as_bytes()).is_none(), "{response}");
        }
        assert_eq!(parse_entries(&json!([])).len(), 0);
    }

    #[test]
    fn volatile_fields_make_no_difference() {
        let models = |created: u64, length: u64| {
            let permission = json!([{ "id": format!("modelperm-{created}") }]);
            parse_entries(
                &json!([{ "id": "a", "created": created, "max_model_len": length,
                                    "permission": permission }]),
            )
        };
        assert!(ServedModel::are_equivalent(&models(1, 10), &models(2, 10)));
        assert!(!ServedModel::are_equivalent(&models(1, 10), &models(1, 20)));
        assert!(!ServedModel::are_equivalent(&models(1, 10), &[]));
    }

    #[test]
    fn model_count_and_id_length_are_bounded() {
        let ids = (0..ModelList::MOST + 7).map(|number| json!({ "id": format!("m{number}") }));
        let response = json!({ "data": ids.collect::<Vec<_>>() }).to_string();
        let list = ModelList::read(response.as_bytes()).unwrap();
        assert_eq!(
            (list.models.len(), list.excess_models),
            (ModelList::MOST, 7)
        );
        let [longest, too_long] = [0, 1].map(|extra| "x".repeat(ModelList::MAX_ID_BYTES + extra));
        let response = json!({ "data": [{ "id": too_long }, { "id": longest }, { "id": 7 }] });
        let response = response.to_string();
        let list = ModelList::read(response.as_bytes()).unwrap();
        assert_eq!((&*list.models[0].id, list.too_long), (&*longest, 1));
        assert_eq!((list.models.len(), list.excess_models), (1, 0));
    }

    #[test]
    fn a_renamed_entry_keeps_all_other_fields() {
        let text = r#"{"data":[{"id":"a","x" : [1,  2],"owned_by":"vllm"}]}"#;
        let models = ModelList::read(text.as_bytes()).unwrap().models;
        let written = serde_json::to_string(&models[0].entry).unwrap();
        assert_eq!(written, r#"{"id":"a","x" : [1,  2],"owned_by":"vllm"}"#);
        assert_eq!(models[0].server, Some(EngineKind::Vllm));
        let renamed = models[0].called(&"b".into());
        let entry = serde_json::to_value(&renamed.entry).unwrap();
        assert_eq!(
            (&*renamed.id, entry),
            ("b", json!({ "id": "b", "x": [1, 2], "owned_by": "vllm" }))
        );
    }
}

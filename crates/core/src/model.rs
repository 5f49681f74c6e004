//! The models that a replica says it serves: what its `/v1/models` answers.
//!
//! A backend may list thousands of adapters, so an entry is kept as the text that it came as, and
//! what a gateway takes of one list is bounded.

use crate::dialect::Server;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

/// A model that a replica serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its id.
    pub id: Arc<str>,
    /// The id of the model that it is a LoRA adapter on.
    pub parent: Option<Arc<str>>,
    /// The kind of server, by the owner that the entry names.
    pub server: Option<Server>,
    /// The entry of `/v1/models`.
    pub entry: Entry,
    /// A hash of the fields that are the same in every answer.
    lasting: u64,
}

/// An entry of `/v1/models`, as the replica sent it.
#[derive(Debug, Clone)]
pub struct Entry(Arc<RawValue>);

/// What is taken of one answer of `/v1/models`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    /// The models, in the order of the answer.
    pub models: Arc<[Model]>,
    /// Entries beyond [`Listing::MOST`].
    pub too_many: usize,
    /// Entries whose id is longer than [`Listing::LONGEST_ID`].
    pub too_long: usize,
}

#[derive(Deserialize)]
struct Answer {
    data: Listing,
}

/// Fields that vLLM makes anew for every answer.
const VOLATILE: [&str; 2] = ["created", "permission"];

// === impl Listing ===

impl Listing {
    /// Most models of one backend. The others are not served by it.
    pub const MOST: usize = 10_000;
    /// Longest id of a model, in bytes.
    pub const LONGEST_ID: usize = 256;

    /// The list of an answer. `None` if it has none.
    pub fn read(answer: &[u8]) -> Option<Self> {
        serde_json::from_slice(answer).ok().map(|Answer { data }| data)
    }
}

impl<'de> Deserialize<'de> for Listing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Listing;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of models")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Listing, A::Error> {
                let (mut listing, mut models) = (Listing::default(), Vec::<Model>::new());
                while let Some(entry) = entries.next_element::<&RawValue>()? {
                    if models.len() == Listing::MOST {
                        listing.too_many += 1;
                        continue;
                    }
                    let Some(mut model) = Model::read(entry) else { continue };
                    if model.id.len() > Listing::LONGEST_ID {
                        listing.too_long += 1;
                        continue;
                    }
                    // Adapters of one base share its name.
                    if let Some(last) = models.last().filter(|last| last.parent == model.parent) {
                        model.parent.clone_from(&last.parent);
                    }
                    models.push(model);
                }
                listing.models = models.into();
                Ok(listing)
            }
        }

        deserializer.deserialize_seq(Entries)
    }
}

// === impl Model ===

impl Model {
    /// The model of an entry. `None` if it has no id.
    fn read(entry: &RawValue) -> Option<Self> {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_str(entry.get()).ok()?;
        let text = |field| -> Option<String> {
            serde_json::from_str(fields.get(field).map(|value| value.get())?).ok()
        };
        let mut lasting = Xxh3Default::new();
        for (name, value) in fields.iter().filter(|(name, _)| !VOLATILE.contains(&name.as_str())) {
            lasting.update(name.as_bytes());
            // No byte of a text.
            lasting.update(&[0xff]);
            lasting.update(value.get().as_bytes());
            lasting.update(&[0xff]);
        }
        Some(Self {
            id: text("id")?.into(),
            parent: text("parent").map(Arc::from),
            server: text("owned_by").and_then(|owner| Server::of_owner(&owner)),
            entry: Entry(entry.to_owned().into()),
            lasting: lasting.digest(),
        })
    }

    /// The model of an entry. `None` if it has no id.
    #[cfg(any(test, feature = "testing"))]
    pub fn of(entry: &Value) -> Option<Self> {
        Self::read(&serde_json::value::to_raw_value(entry).ok()?)
    }

    /// The models of an answer. `None` if it is not a list of them.
    pub fn list(answer: &[u8]) -> Option<Arc<[Self]>> {
        Listing::read(answer).map(|listing| listing.models)
    }

    /// The same model under another name.
    pub fn called(&self, name: &Arc<str>) -> Self {
        if self.id == *name {
            return self.clone();
        }
        Self { id: name.clone(), entry: self.entry.called(name), ..self.clone() }
    }

    /// Whether two lists are the same but for what differs in every answer.
    pub fn are_same(some: &[Self], others: &[Self]) -> bool {
        some.iter().map(|model| model.lasting).eq(others.iter().map(|model| model.lasting))
    }
}

// === impl Entry ===

impl Entry {
    /// A field of it.
    pub fn get(&self, field: &str) -> Option<Value> {
        let Ok(Value::Object(mut fields)) = serde_json::from_str(self.0.get()) else { return None };
        fields.remove(field)
    }

    fn called(&self, name: &str) -> Self {
        let mut entry: Value = serde_json::from_str(self.0.get()).unwrap_or_default();
        if let Some(id) = entry.get_mut("id") {
            *id = name.into();
        }
        // Values of JSON can always be written.
        serde_json::value::to_raw_value(&entry).map_or_else(|_| self.clone(), |it| Self(it.into()))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RawValue::serialize(&self.0, serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list(entries: &Value) -> Arc<[Model]> {
        Model::list(json!({ "object": "list", "data": entries }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn an_adapter_knows_the_model_that_it_is_on() {
        let models = list(&json!([
            { "id": "base", "root": "/models/base", "parent": null },
            { "id": "sql", "root": "/adapters/sql", "parent": "base" },
            { "object": "nameless" },
        ]));
        let found = models.iter().map(|model| (&*model.id, model.parent.as_deref()));
        assert_eq!(found.collect::<Vec<_>>(), [("base", None), ("sql", Some("base"))]);
        assert_eq!(models[1].entry.get("root"), Some("/adapters/sql".into()));
        assert_eq!(models[1].entry.get("nothing"), None);
    }

    #[test]
    fn what_is_no_list_is_not_taken_for_an_empty_one() {
        for answer in ["", "[]", r#"{"data":{}}"#, r#"{"error":"no"}"#] {
            assert_eq!(Model::list(answer.as_bytes()), None, "{answer}");
        }
        assert_eq!(list(&json!([])).len(), 0);
    }

    #[test]
    fn lists_that_differ_in_their_time_only_are_the_same() {
        let at = |created: u64, length: u64| {
            let permission = json!([{ "id": format!("modelperm-{created}") }]);
            list(&json!([{ "id": "a", "created": created, "max_model_len": length,
                           "permission": permission }]))
        };
        assert!(Model::are_same(&at(1, 10), &at(2, 10)));
        assert!(!Model::are_same(&at(1, 10), &at(1, 20)));
        assert!(!Model::are_same(&at(1, 10), &[]));
    }

    #[test]
    fn a_list_has_a_bound_and_so_have_its_ids() {
        let ids = (0..Listing::MOST + 7).map(|number| json!({ "id": format!("m{number}") }));
        let answer = json!({ "data": ids.collect::<Vec<_>>() }).to_string();
        let listing = Listing::read(answer.as_bytes()).unwrap();
        assert_eq!((listing.models.len(), listing.too_many), (Listing::MOST, 7));
        let [most, more] = [0, 1].map(|more| "x".repeat(Listing::LONGEST_ID + more));
        let answer = json!({ "data": [{ "id": more }, { "id": most }, { "id": 7 }] }).to_string();
        let listing = Listing::read(answer.as_bytes()).unwrap();
        assert_eq!((&*listing.models[0].id, listing.too_long), (&*most, 1));
        assert_eq!((listing.models.len(), listing.too_many), (1, 0));
    }

    #[test]
    fn an_entry_stands_as_it_was_sent_and_under_another_name_with_all_its_fields() {
        let text = r#"{"data":[{"id":"a","x" : [1,  2],"owned_by":"vllm"}]}"#;
        let models = Model::list(text.as_bytes()).unwrap();
        let written = serde_json::to_string(&models[0].entry).unwrap();
        assert_eq!(written, r#"{"id":"a","x" : [1,  2],"owned_by":"vllm"}"#);
        assert_eq!(models[0].server, Some(Server::Vllm));
        let called = models[0].called(&"b".into());
        let entry = serde_json::to_value(&called.entry).unwrap();
        assert_eq!(
            (&*called.id, entry),
            ("b", json!({ "id": "b", "x": [1, 2], "owned_by": "vllm" }))
        );
    }
}

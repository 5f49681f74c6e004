//! The models that a replica says it serves: what its `/v1/models` answers.

use serde_json::Value;
use std::sync::Arc;

/// A model that a replica serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Its id, also as a label value.
    pub id: Arc<str>,
    /// The id of the model that it is a LoRA adapter on.
    pub parent: Option<Arc<str>>,
    /// The entry of `/v1/models`.
    pub entry: Value,
}

/// Fields that vLLM makes anew for every answer.
const VOLATILE: [&str; 2] = ["created", "permission"];

// === impl Model ===

impl Model {
    /// The model of an entry. `None` if it has no id.
    pub fn of(entry: Value) -> Option<Self> {
        let text = |field| entry.get(field).and_then(Value::as_str).map(Arc::from);
        Some(Self { id: text("id")?, parent: text("parent"), entry })
    }

    /// The models of an answer. `None` if it is not a list of them.
    pub fn list(answer: &[u8]) -> Option<Arc<[Self]>> {
        let mut answer: Value = serde_json::from_slice(answer).ok()?;
        let Some(Value::Array(entries)) = answer.get_mut("data").map(Value::take) else {
            return None;
        };
        Some(entries.into_iter().filter_map(Self::of).collect())
    }

    /// The same model under another name.
    pub(super) fn called(&self, name: &Arc<str>) -> Self {
        let mut model = self.clone();
        if let Some(id) = model.entry.get_mut("id") {
            *id = Value::from(&**name);
        }
        Self { id: name.clone(), ..model }
    }

    /// Whether two lists are the same but for what differs in every answer.
    pub(super) fn are_same(some: &[Self], others: &[Self]) -> bool {
        some.iter().map(Self::lasting).eq(others.iter().map(Self::lasting))
    }

    fn lasting(&self) -> Vec<(&String, &Value)> {
        let fields = self.entry.as_object().into_iter().flatten();
        fields.filter(|(name, _)| !VOLATILE.contains(&name.as_str())).collect()
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
        assert_eq!(models[1].entry["root"], "/adapters/sql");
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
}

//! Which replicas serve which model, and what they call it: one table, made anew when a replica's
//! models change, so that a request costs one lookup however many replicas there are.

use super::dialect::adapter_hash;
use super::model::Model;
pub use super::terms::Terms;
use crate::openai::control::{Permission, Permissions};
use crate::record::{BackendId, ModelLabel};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A name that the configuration gives to a model. It wins over a model of that name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// What clients write.
    pub name: String,
    /// What the replicas call it. `None`: the same.
    #[serde(default)]
    pub served_as: Option<String>,
    /// The names of the only replicas for it. `None`: all that serve it.
    #[serde(default)]
    pub backends: Option<Vec<String>>,
    /// The engine-control fields that each client of this model may use, besides those that its
    /// tenant may.
    #[serde(default)]
    pub allow: Vec<Permission>,
    /// On what terms, where they are not those of all requests.
    #[serde(default)]
    pub terms: Terms,
}

/// Where requests for a model go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The label of the model.
    pub label: ModelLabel,
    /// What the replicas call it, if its clients call it otherwise.
    pub served_as: Option<Arc<str>>,
    /// The positions of the replicas that serve it, or may: those that have not said what they
    /// serve.
    pub replicas: Arc<[usize]>,
    /// The hash of the model's name, if it is a LoRA adapter.
    pub adapter: Option<u64>,
    /// The engine-control fields that each client of the model may use.
    pub allowed: Permissions,
    /// On what terms, where they are not those of all requests.
    pub terms: Terms,
}

/// The routes as they are now. Replaced whole.
#[derive(Debug)]
pub struct Routes {
    by_name: HashMap<Arc<str>, Route>,
    /// Of a request without a model.
    anywhere: Route,
    /// Of a model that no replica has named.
    unheard: Route,
    models: Vec<Model>,
}

/// A [`Named`] whose replicas are known by their positions.
#[derive(Debug)]
pub(super) struct Rule {
    name: Arc<str>,
    served_as: Option<Arc<str>>,
    /// For each position whether it may be asked. `None`: all may.
    only: Option<Vec<bool>>,
    allowed: Permissions,
    terms: Terms,
}

/// What each replica says that it serves. `None`: it has not said. Equal lists are one.
pub(super) type Said = [Option<Arc<[Model]>>];

/// The lists of models that there are, each of them once, however many replicas have it.
#[derive(Debug, Default)]
pub(super) struct Lists(Vec<Arc<[Model]>>);

/// Replicas that say the same.
struct Group<'a> {
    models: &'a [Model],
    positions: Vec<usize>,
}

// === impl Named ===

impl Named {
    /// What the replicas call the model, if clients call it otherwise.
    pub fn alias_of(&self) -> Option<&str> {
        self.served_as.as_deref().filter(|target| *target != self.name)
    }
}

// === impl Routes ===

impl Routes {
    /// The route of a model. A request that names none, or an empty one as vLLM allows, goes
    /// anywhere.
    pub fn of(&self, model: Option<&str>) -> &Route {
        match model {
            None | Some("") => &self.anywhere,
            Some(name) => self.by_name.get(name).unwrap_or(&self.unheard),
        }
    }

    /// The models that there are, by id, the configuration's names among them. Of several entries
    /// for one id the first replica's.
    pub fn models(&self) -> &[Model] {
        &self.models
    }

    /// Of replicas that say this, in the order of their positions.
    pub(super) fn new(rules: &[Rule], said: &Said) -> Self {
        let groups = Group::all(said);
        let silent = (0..said.len()).filter(|position| said[*position].is_none());
        let silent: Vec<usize> = silent.collect();
        let mut served: HashMap<&str, Vec<(&Group<'_>, &Model)>> = HashMap::new();
        for group in &groups {
            for model in group.models {
                let places = served.entry(&model.id).or_default();
                if places.last().is_none_or(|(last, _)| !std::ptr::eq(*last, group)) {
                    places.push((group, model));
                }
            }
        }
        let named: HashSet<&str> = rules.iter().map(|rule| &*rule.name).collect();
        let plain = served.keys().filter(|id| !named.contains(*id));
        let plain: Vec<Rule> = plain.map(|id| Rule::plain(id)).collect();
        let (mut by_name, mut models) = (HashMap::new(), Vec::new());
        for rule in rules.iter().chain(&plain) {
            let places = served.get(rule.target()).map_or(&[][..], Vec::as_slice);
            models.extend(rule.entry(places));
            let serving = places.iter().flat_map(|(group, _)| &group.positions);
            let replicas = serving.chain(&silent).filter(|position| rule.allows(**position));
            let label = ModelLabel::known(rule.name.clone());
            let mut route = Route::new(label, rule.served_as.clone(), replicas.copied());
            let is_adapter = places.iter().any(|(_, model)| model.parent.is_some());
            route.terms = rule.terms;
            route.allowed = rule.allowed;
            route.adapter = is_adapter.then(|| adapter_hash(rule.target()));
            by_name.insert(rule.name.clone(), route);
        }
        models.sort_by(|a, b| a.id.cmp(&b.id));
        Self {
            by_name,
            anywhere: Route::new(only_model(&groups), None, 0..said.len()),
            unheard: Route::new(ModelLabel::other(), None, silent.iter().copied()),
            models,
        }
    }
}

/// The label of the model that a replica takes if it is told none, which is the first that it
/// lists, if all replicas have the same one.
fn only_model(groups: &[Group<'_>]) -> ModelLabel {
    let mut firsts = groups.iter().filter_map(|group| group.models.first());
    match firsts.next() {
        Some(first) if firsts.all(|other| other.id == first.id) => {
            ModelLabel::known(first.id.clone())
        }
        _ => ModelLabel::other(),
    }
}

// === impl Group ===

impl<'a> Group<'a> {
    fn all(said: &'a Said) -> Vec<Self> {
        let mut by_list = HashMap::new();
        let mut groups: Vec<Self> = Vec::new();
        for (position, models) in said.iter().enumerate() {
            let Some(models) = models else { continue };
            let index = *by_list.entry(models.as_ptr()).or_insert(groups.len());
            if index == groups.len() {
                groups.push(Self { models, positions: Vec::new() });
            }
            groups[index].positions.push(position);
        }
        groups
    }
}

// === impl Route, Rule ===

impl Route {
    fn new(
        label: ModelLabel,
        served_as: Option<Arc<str>>,
        replicas: impl Iterator<Item = usize>,
    ) -> Self {
        let mut replicas: Vec<usize> = replicas.collect();
        replicas.sort_unstable();
        let replicas = replicas.into();
        let (allowed, terms) = Default::default();
        Self { label, served_as, replicas, adapter: None, allowed, terms }
    }
}

impl Rule {
    /// The rule of a name among these replicas, in the order of their positions.
    pub(super) fn of(named: &Named, replicas: &[BackendId]) -> Self {
        let only = named.backends.as_ref().map(|names| {
            let is_listed = |id: &BackendId| names.iter().any(|name| name == id.as_str());
            replicas.iter().map(is_listed).collect()
        });
        let served_as = named.alias_of().map(Arc::from);
        let allowed = Permissions::new(&named.allow);
        Self { name: named.name.as_str().into(), served_as, only, allowed, terms: named.terms }
    }

    fn plain(id: &str) -> Self {
        let (allowed, terms) = Default::default();
        Self { name: id.into(), served_as: None, only: None, allowed, terms }
    }

    fn target(&self) -> &str {
        self.served_as.as_deref().unwrap_or(&self.name)
    }

    /// Its entry for `/v1/models`: that of the first replica which may be asked.
    fn entry(&self, places: &[(&Group<'_>, &Model)]) -> Option<Model> {
        let first = |group: &Group<'_>| {
            group.positions.iter().copied().find(|position| self.allows(*position))
        };
        let places = places.iter().filter_map(|(group, model)| Some((first(group)?, model)));
        let (_, model) = places.min_by_key(|(position, _)| *position)?;
        Some(model.called(&self.name))
    }

    fn allows(&self, position: usize) -> bool {
        self.only.as_ref().is_none_or(|only| only[position])
    }
}

// === impl Lists ===

impl Lists {
    /// The list that is the same as this one, to be kept instead of it.
    pub(super) fn shared(&mut self, models: &Arc<[Model]>) -> Arc<[Model]> {
        // Those that no replica has any more.
        self.0.retain(|list| Arc::strong_count(list) > 1);
        let same = self.0.iter().find(|list| Model::are_same(list, models)).cloned();
        same.unwrap_or_else(|| {
            self.0.push(models.clone());
            models.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn said(ids: &[&str]) -> Arc<[Model]> {
        let entry = |id: &&str| json!({ "id": id, "root": format!("/models/{id}") });
        ids.iter().filter_map(|id| Model::of(entry(id))).collect()
    }

    /// The routes to replicas `r0`, `r1`, …, by what they say that they serve.
    fn routes(names: &[Named], fleet: &[Option<&[&str]>]) -> Routes {
        let ids: Vec<BackendId> =
            (0..fleet.len()).map(|number| BackendId::new(&format!("r{number}"))).collect();
        let rules: Vec<Rule> = names.iter().map(|named| Rule::of(named, &ids)).collect();
        let mut lists = Lists::default();
        let list = |ids: Option<&[&str]>| ids.map(|ids| lists.shared(&said(ids)));
        Routes::new(&rules, &fleet.iter().copied().map(list).collect::<Vec<_>>())
    }

    fn named(name: &str, served_as: Option<&str>, backends: Option<&[&str]>) -> Named {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Named {
            name: name.into(),
            served_as: served_as.map(Into::into),
            backends: backends.map(owned),
            ..Named::default()
        }
    }

    fn ids(routes: &Routes) -> Vec<&str> {
        routes.models().iter().map(|model| &*model.id).collect()
    }

    #[test]
    fn an_alias_leads_to_the_replicas_of_its_target_by_their_name() {
        let names = [named("gpt", Some("qwen"), None)];
        let routes = routes(&names, &[Some(&["qwen"]), Some(&["llama"]), Some(&["qwen"])]);
        let route = routes.of(Some("gpt"));
        assert_eq!((&*route.replicas, route.served_as.as_deref()), (&[0, 2][..], Some("qwen")));
        assert_eq!(route.label.as_str(), "gpt");
        assert_eq!(routes.of(Some("qwen")).served_as, None);
    }

    #[test]
    fn a_name_of_the_configuration_wins_over_a_model_and_goes_only_where_it_may() {
        let names = [named("b", Some("a"), None), named("a", None, Some(&["r1", "r2"]))];
        let routes = routes(&names, &[Some(&["a"]), Some(&["b"]), Some(&["a", "b"])]);
        assert_eq!(*routes.of(Some("a")).replicas, [2]);
        assert_eq!(*routes.of(Some("b")).replicas, [0, 2], "those of `a`, not of their `b`");
        assert_eq!(ids(&routes), ["a", "b"]);
    }

    #[test]
    fn an_alias_is_listed_as_its_target_while_a_replica_of_it_serves_that() {
        let names = [named("gpt", Some("qwen"), Some(&["r1"])), named("none", Some("x"), None)];
        let all = routes(&names, &[Some(&["qwen"]), Some(&["qwen"]), None]);
        assert_eq!(ids(&all), ["gpt", "qwen"]);
        assert_eq!(all.models()[0].entry, json!({ "id": "gpt", "root": "/models/qwen" }));
        let others = routes(&names, &[Some(&["qwen"]), Some(&["llama"]), None]);
        assert_eq!(ids(&others), ["llama", "qwen"]);
        assert!(others.of(Some("gpt")).replicas.is_empty(), "the others may not");
    }

    #[test]
    fn a_model_that_nobody_serves_has_the_label_of_all_others_and_an_alias_its_own() {
        let names = [named("gpt", Some("qwen"), None)];
        let routes = routes(&names, &[Some(&["a"])]);
        assert_eq!(routes.of(Some("a")).label.as_str(), "a");
        assert_eq!(routes.of(Some("evil\n")).label.as_str(), "_other");
        assert_eq!(routes.of(Some("gpt")).label.as_str(), "gpt", "known, though not served");
    }

    #[test]
    fn a_request_without_a_model_goes_anywhere_and_has_the_label_of_the_only_one() {
        for (fleet, label) in [
            (&[Some(&["base", "adapter"][..]), Some(&["base"]), None][..], "base"),
            (&[Some(&["a"]), Some(&["b"])], "_other"),
            (&[None], "_other"),
        ] {
            let routes = routes(&[], fleet);
            for model in [None, Some("")] {
                let route = routes.of(model);
                assert_eq!((route.label.as_str(), route.replicas.len()), (label, fleet.len()));
            }
        }
    }

    #[test]
    fn equal_lists_are_one_while_a_replica_has_it() {
        let mut lists = Lists::default();
        let first = lists.shared(&said(&["a"]));
        assert!(Arc::ptr_eq(&first, &lists.shared(&said(&["a"]))));
        assert!(!Arc::ptr_eq(&first, &lists.shared(&said(&["b"]))));
        drop(first);
        lists.shared(&said(&["c"]));
        assert_eq!(lists.0.len(), 1, "those that nobody has are forgotten");
    }

    proptest! {
        #[test]
        fn the_table_has_what_asking_each_replica_would_find(
            fleet in proptest::collection::vec(
                proptest::option::of(proptest::collection::vec("[a-d]", 0..5)), 0..6),
            names in proptest::collection::btree_map("[a-f]", (
                proptest::option::of("[a-f]"),
                proptest::option::of(proptest::collection::vec("r[0-5]", 0..4)),
            ), 0..4),
            wanted in "[a-g]",
        ) {
            let names: Vec<Named> = names
                .into_iter()
                .map(|(name, (served_as, backends))| Named {
                    name,
                    served_as,
                    backends,
                    ..Named::default()
                })
                .collect();
            let texts: Vec<Option<Vec<&str>>> = fleet
                .iter()
                .map(|ids| ids.as_ref().map(|ids| ids.iter().map(String::as_str).collect()))
                .collect();
            let slices: Vec<Option<&[&str]>> = texts.iter().map(Option::as_deref).collect();
            let routes = routes(&names, &slices);
            let rule = names.iter().find(|named| named.name == wanted);
            let target = rule.and_then(|rule| rule.served_as.as_ref()).unwrap_or(&wanted);
            let may = |position: &usize| {
                let only = rule.and_then(|rule| rule.backends.as_ref());
                only.is_none_or(|only| only.contains(&format!("r{position}")))
                    && fleet[*position].as_ref().is_none_or(|ids| ids.contains(target))
            };
            let expected: Vec<usize> = (0..fleet.len()).filter(may).collect();
            let route = routes.of(Some(&wanted));
            prop_assert_eq!(&*route.replicas, &*expected);
            prop_assert_eq!(route.served_as.as_deref().unwrap_or(&wanted), target);
            let is_listed = expected.iter().any(|position| fleet[*position].is_some());
            prop_assert_eq!(ids(&routes).contains(&&*wanted), is_listed);
        }
    }
}

//! Which replicas serve which model, and what they call it: one table, made anew when a replica's
//! models change, so that a request costs one lookup however many replicas there are.

use super::labels::Labels;
pub use super::terms::Terms;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokenweir_core::dialect::adapter_hash;
use tokenweir_core::model::Model;
use tokenweir_core::openai::control::{Permission, Permissions};
use tokenweir_core::record::{BackendId, ModelLabel};

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
    /// The different sets of replicas that the routes have.
    sets: Vec<Arc<[usize]>>,
    /// A backend has not said yet which models it serves.
    has_unlisted: bool,
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

    /// The model that every backend uses for a request which names none. `None`: the backends differ,
    /// one has not listed its models yet, or the configuration gives that name to another model.
    pub fn default_model(&self) -> Option<&str> {
        let label = &self.anywhere.label;
        let is_known = label.is_known() && !self.has_unlisted;
        let is_plain =
            |name: &&str| self.by_name.get(*name).is_none_or(|route| route.served_as.is_none());
        is_known.then(|| label.name()).filter(is_plain)
    }

    /// The models that there are, by id, the configuration's names among them. Of several entries
    /// for one id the first replica's.
    pub fn models(&self) -> &[Model] {
        &self.models
    }

    /// The different sets of replicas, by their positions, that requests can go to.
    pub(super) fn sets(&self) -> &[Arc<[usize]>] {
        &self.sets
    }

    /// Of replicas that say this, in the order of their positions.
    pub(super) fn new(rules: &[Rule], said: &Said, labels: &Labels) -> Self {
        let groups = Group::all(said);
        let silent = (0..said.len()).filter(|position| said[*position].is_none());
        let silent: Vec<usize> = silent.collect();
        let mut served: HashMap<&Arc<str>, Vec<(&Group<'_>, &Model)>> = HashMap::new();
        for group in &groups {
            for model in group.models {
                let places = served.entry(&model.id).or_default();
                if places.last().is_none_or(|(last, _)| !std::ptr::eq(*last, group)) {
                    places.push((group, model));
                }
            }
        }
        let named: HashSet<&Arc<str>> = rules.iter().map(|rule| &rule.name).collect();
        let plain = served.keys().filter(|id| !named.contains(*id));
        let plain: Vec<Rule> = plain.map(|id| Rule::plain(id)).collect();
        let (mut by_name, mut models) = (HashMap::new(), Vec::new());
        // Most models are served by the same replicas as others: these share their positions.
        let mut sets: HashSet<Arc<[usize]>> = HashSet::new();
        let mut shared = |route: Route| {
            let replicas = sets.get(&route.replicas).cloned().unwrap_or_else(|| {
                sets.insert(route.replicas.clone());
                route.replicas.clone()
            });
            Route { replicas, ..route }
        };
        for rule in rules.iter().chain(&plain) {
            let places = served.get(rule.target()).map_or(&[][..], Vec::as_slice);
            models.extend(rule.entry(places));
            let serving = places.iter().flat_map(|(group, _)| &group.positions);
            let replicas = serving.chain(&silent).filter(|position| rule.allows(**position));
            let label = labels.of(&rule.name);
            let mut route = Route::new(label, rule.served_as.clone(), replicas.copied());
            let is_adapter = places.iter().any(|(_, model)| model.parent.is_some());
            route.terms = rule.terms;
            route.allowed = rule.allowed;
            route.adapter = is_adapter.then(|| adapter_hash(rule.target()));
            by_name.insert(rule.name.clone(), shared(route));
        }
        models.sort_by(|a, b| a.id.cmp(&b.id));
        let anywhere = shared(Route::new(only_model(&groups, labels), None, 0..said.len()));
        let unheard = Route::new(ModelLabel::other(), None, silent.iter().copied());
        let unheard = shared(unheard);
        let (sets, has_unlisted) = (sets.into_iter().collect(), !silent.is_empty());
        Self { by_name, anywhere, unheard, models, sets, has_unlisted }
    }
}

/// The label of the model that a replica takes if it is told none, which is the first that it
/// lists, if all replicas have the same one.
fn only_model(groups: &[Group<'_>], labels: &Labels) -> ModelLabel {
    let mut firsts = groups.iter().filter_map(|group| group.models.first());
    match firsts.next() {
        Some(first) if firsts.all(|other| other.id == first.id) => labels.of(&first.id),
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
    /// What clients write.
    pub(super) const fn name(&self) -> &Arc<str> {
        &self.name
    }

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

    fn plain(id: &Arc<str>) -> Self {
        let (allowed, terms) = Default::default();
        Self { name: id.clone(), served_as: None, only: None, allowed, terms }
    }

    fn target(&self) -> &Arc<str> {
        self.served_as.as_ref().unwrap_or(&self.name)
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
    /// The models that replicas list: those of equal lists once.
    pub(super) fn models(said: &Said) -> impl Iterator<Item = &Model> {
        let mut seen = HashSet::new();
        let lists = said.iter().flatten().filter(move |list| seen.insert(list.as_ptr()));
        lists.flat_map(|list| list.iter())
    }

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
#[path = "routes_tests.rs"]
mod tests;

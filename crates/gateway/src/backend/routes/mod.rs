//! The route table maps the model name of a request to the backends that serve the model, and to the model name
//! at these backends. A change of a model list rebuilds the table. So a request costs one lookup, regardless of
//! the number of backends.

mod lengths;
mod model_config;
pub mod model_labels;
mod model_lists;
mod split;

pub use lengths::ModelLengths;
pub use model_config::{ModelConfig, RoutePolicy, SplitVersion};
pub(in crate::backend) use model_lists::{AdvertisedModels, ModelListInterner};

use hashbrown::HashMap;
use model_labels::{LABEL_RETENTION, ModelLabelTable};
use model_lists::{BackendGroup, groups_by_model};
use std::collections::HashSet;
use std::iter;
use std::sync::Arc;
use std::time::Instant;
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::adapter_hash;
use tokenweir_engine::model::ServedModel;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::engine_control::Permissions;
use tokenweir_request::access::RequestCaps;
use tokenweir_request::record::ModelLabel;

/// The backends, the name at the backends and the settings of one model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelRoute {
    /// The label value of the model in metrics.
    pub label: ModelLabel,
    /// The model name that the backends use. `None`: the same name as in client requests.
    pub served_as: Option<Arc<str>>,
    /// The positions in the pool of the backends that list the model, and of backends that may serve it because
    /// their list is not known yet.
    pub backends: Arc<[usize]>,
    /// The context lengths of the model at these backends.
    pub lengths: ModelLengths,
    /// The hash of the model name at the backends, if the model is a LoRA adapter. `None`: the model is
    /// no adapter.
    pub adapter_hash: Option<u64>,
    /// The engine-control fields that every client of the model may use.
    pub permissions: Permissions,
    /// Limits on the fields of each request of the model. `None`: no caps.
    pub caps: Option<Arc<RequestCaps>>,
    /// Overrides of global settings for requests of this model.
    pub policy: RoutePolicy,
    /// Whether the gateway writes the model name that the client requested into responses.
    pub(crate) renames_response: bool,
    /// Whether an option chooses a version of the model for each request. The route then has the backends of
    /// all versions.
    pub(crate) is_split: bool,
    /// The model that serves the request as a version of the model named in the request. `None`: the named
    /// model serves it.
    pub(crate) version: Option<Arc<str>>,
    /// Whether a backend may serve the model soon although none does now. The configuration names the model, or
    /// backends that listed it left the pool.
    is_expected: bool,
    /// Time since which no backend lists the model any more. `None`: a backend lists the model, or none ever
    /// did.
    pub(crate) absent_since: Option<Instant>,
}

/// The routes of all models. A change replaces the table by a new table.
#[derive(Debug, Clone, Default)]
pub struct RouteTable {
    /// The routes of configured models and of models that backends list, by the name in client
    /// requests.
    by_name: HashMap<Arc<str>, Arc<ModelRoute>>,
    /// The route of requests without a model name.
    default_route: Arc<ModelRoute>,
    /// The route of model names that are not in `by_name`. Its backends have not listed their
    /// models yet.
    unknown_model_route: Arc<ModelRoute>,
    /// The models for `/v1/models`, sorted by id.
    models: Vec<ServedModel>,
    /// The distinct sets of backend positions of all routes.
    backend_sets: Vec<Arc<[usize]>>,
    /// Whether any backend has not listed its models yet.
    has_unlisted_backend: bool,
}

/// Maximum number of models that the table keeps although no backend lists them any more.
const MAX_ABSENT_MODELS: usize = 1_000;

/// A configured model, or a model that backends list, with its allowed backends as positions.
#[derive(Debug, Default)]
pub(in crate::backend) struct RouteRule {
    /// The model name in client requests.
    pub(in crate::backend) name: Arc<str>,
    /// The names of the models over which requests are split. Empty: the model is not split.
    versions: Vec<Arc<str>>,
    /// For each position, whether the backend at this position may serve the model. `None`: all
    /// backends may serve the model.
    eligible_positions: Option<Vec<bool>>,
    /// The route of the model without its label and its backends.
    route: ModelRoute,
}

/// The lists of all routes. Most models have the same backends and context lengths as other models, so their
/// routes share one list.
#[derive(Default)]
struct SharedLists {
    positions: HashSet<Arc<[usize]>>,
    lengths: HashSet<ModelLengths>,
}

impl RouteTable {
    /// The route of a requested model. A request without a model name, or with an empty name (which
    /// vLLM allows), may go to every backend.
    pub fn lookup(&self, model: Option<&str>) -> &Arc<ModelRoute> {
        match model {
            None | Some("") => &self.default_route,
            Some(name) => self.by_name.get(name).unwrap_or(&self.unknown_model_route),
        }
    }

    /// Whether a request for the model will be served once a backend of the model is available. `false` for a
    /// name that neither the configuration nor a present or former backend has named. While the gateway knows
    /// no model name, every name is expected.
    pub fn is_expected(&self, model: Option<&str>) -> bool {
        let Some(name) = model.filter(|name| !name.is_empty()) else {
            return true;
        };
        let is_target = |route: &Arc<ModelRoute>| route.served_as.as_deref() == Some(name);
        match self.by_name.get(name) {
            Some(route) => route.is_expected || !route.backends.is_empty(),
            None => self.by_name.is_empty() || self.by_name.values().any(is_target),
        }
    }

    /// Whether the model is expected and no backend lists it.
    pub(crate) fn is_awaited(&self, model: Option<&str>) -> bool {
        let route = model.and_then(|name| self.by_name.get(name));
        route.is_some_and(|route| route.is_expected && route.backends.is_empty())
    }

    /// The model that every backend uses for a request without a model name. `None`: the backends use different
    /// models, a backend has not listed its models yet, or the name is configured as an alias of another model.
    pub fn default_model(&self) -> Option<&str> {
        let label = &self.default_route.label;
        let is_known = label.is_known() && !self.has_unlisted_backend;
        let is_no_alias = |name: &&str| {
            self.by_name
                .get(*name)
                .is_none_or(|route| route.served_as.is_none())
        };
        is_known.then(|| label.name()).filter(is_no_alias)
    }

    /// The models for `/v1/models`, sorted by id. Includes configured names and aliases that a
    /// backend serves. If several backends list the same id, the entry is from the first of them.
    pub fn models(&self) -> &[ServedModel] {
        &self.models
    }

    /// The expected names of models that no backend lists: the configuration names them, or their backends left
    /// the pool.
    pub(crate) fn unlisted_names(&self) -> impl Iterator<Item = &Arc<str>> {
        let is_listed = |name: &str| {
            self.models
                .binary_search_by(|model| (*model.id).cmp(name))
                .is_ok()
        };
        let expected = self.by_name.iter().filter(|(_, route)| route.is_expected);
        expected
            .map(|(name, _)| name)
            .filter(move |name| !is_listed(name))
    }

    /// The distinct sets of backends among which requests are routed. Each set is a list of
    /// positions.
    pub(in crate::backend) fn backend_sets(&self) -> &[Arc<[usize]>] {
        &self.backend_sets
    }

    /// Builds the table from the configured rules and the models that each backend lists. Models of the
    /// `previous` table that no backend lists any more are kept for a while. `backends_left`: whether
    /// backends left the pool since the previous table.
    pub(in crate::backend) fn new(
        rules: &[RouteRule],
        advertised: &AdvertisedModels,
        labels: &ModelLabelTable,
        previous: &Self,
        backends_left: bool,
    ) -> Self {
        let groups = BackendGroup::group_by_models(advertised);
        let unlisted = (0..advertised.len()).filter(|position| advertised[*position].is_none());
        let unlisted: Vec<usize> = unlisted.collect();
        let served = groups_by_model(&groups);
        let discovered = RouteRule::discovered(rules, served.keys().copied());
        let mut shared = SharedLists::default();
        let mut by_name = HashMap::new();
        let mut models = Vec::new();
        let whole = rules.iter().filter(|rule| rule.versions.is_empty());
        for rule in whole.chain(&discovered) {
            let entries = served.get(rule.target()).map_or(&[][..], Vec::as_slice);
            models.extend(rule.model_entry(entries));
            let label = labels.label_for(&rule.name);
            let route = rule.route(label, entries, &unlisted, &mut shared);
            by_name.insert(rule.name.clone(), route.into());
        }
        RouteRule::add_split_routes(rules, labels, &mut shared, &mut by_name, &mut models);
        models.sort_by(|a, b| a.id.cmp(&b.id));
        let default_route = default_route(rules, &groups, advertised.len(), labels, &mut shared);
        let unlisted_positions = unlisted.iter().copied();
        let unknown_model_route =
            Arc::new(shared.route(ModelRoute::default(), unlisted_positions, iter::empty()));
        previous.add_absent_models(&mut by_name, labels, &unknown_model_route, backends_left);
        Self {
            by_name,
            default_route,
            unknown_model_route,
            models,
            backend_sets: shared.positions.into_iter().collect(),
            has_unlisted_backend: !unlisted.is_empty(),
        }
    }

    /// Adds the models that are not in `current` and that a backend listed until a few minutes ago. Their requests
    /// go to the backends of `unknown`.
    fn add_absent_models(
        &self,
        current: &mut HashMap<Arc<str>, Arc<ModelRoute>>,
        labels: &ModelLabelTable,
        unknown: &ModelRoute,
        backends_left: bool,
    ) {
        let now = clock::now();
        let mut count = 0;
        for (name, route) in &self.by_name {
            let since = route.absent_since.unwrap_or(now);
            let is_recent = now.saturating_duration_since(since) < LABEL_RETENTION;
            if current.contains_key(name) || !is_recent || count == MAX_ABSENT_MODELS {
                continue;
            }
            count += 1;
            let is_expected = if route.absent_since.is_some() {
                route.is_expected
            } else {
                backends_left
            };
            let absent = ModelRoute {
                // Requests for a model that is no longer listed keep its label, if it has one.
                label: labels.label_for(name),
                backends: unknown.backends.clone(),
                is_expected,
                absent_since: Some(since),
                ..ModelRoute::default()
            };
            current.insert(name.clone(), absent.into());
        }
    }
}

/// The route of requests without a model name, to each of `count` backends. A backend uses the first model in
/// its list. If the first models of the backends differ, the label is the one for unknown models.
fn default_route(
    rules: &[RouteRule],
    groups: &[BackendGroup<'_>],
    count: usize,
    labels: &ModelLabelTable,
    shared: &mut SharedLists,
) -> Arc<ModelRoute> {
    let mut first_models = groups.iter().filter_map(|group| group.models.first());
    let label = match first_models.next() {
        Some(first) if first_models.all(|other| other.id == first.id) => {
            labels.label_for(&first.id)
        }
        _ => ModelLabel::Unknown,
    };
    let listed = groups
        .iter()
        .filter_map(|group| Some((&*group.positions, group.models.first()?.max_len)));
    let route = ModelRoute {
        label,
        caps: default_caps(rules, groups),
        ..ModelRoute::default()
    };
    Arc::new(shared.route(route, 0..count, listed))
}

/// The caps of requests without a model name. They combine the caps of all models that a backend could select,
/// so that such a request cannot escape the caps of its model.
fn default_caps(rules: &[RouteRule], groups: &[BackendGroup<'_>]) -> Option<Arc<RequestCaps>> {
    let is_default = |rule: &&RouteRule| {
        let first_names = groups.iter().filter_map(|group| group.models.first());
        first_names
            .map(|model| &model.id)
            .any(|id| id == rule.target())
    };
    let default = rules.iter().filter(is_default);
    let caps = default.filter_map(|rule| rule.route.caps.clone());
    caps.reduce(|one, other| Arc::new(one.and(&other)))
}

impl ModelRoute {
    /// The name of the model in the route table. `requested`: the name in the request.
    pub fn name<'a>(&'a self, requested: Option<&'a str>) -> Option<&'a str> {
        self.version.as_deref().or(requested)
    }
}

impl SharedLists {
    /// Adds to a route the backends `positions`. `listed`: for each group of backends with equal model lists, their
    /// positions and their context length of the model.
    fn route<'a>(
        &mut self,
        route: ModelRoute,
        positions: impl Iterator<Item = usize>,
        listed: impl Iterator<Item = (&'a [usize], Option<u32>)>,
    ) -> ModelRoute {
        let mut positions: Vec<usize> = positions.collect();
        positions.sort_unstable();
        let lengths = ModelLengths::new(listed, &positions, &mut self.lengths);
        let backends = self.positions.get(&*positions).cloned().unwrap_or_else(|| {
            let backends: Arc<[usize]> = positions.into();
            self.positions.insert(backends.clone());
            backends
        });
        ModelRoute {
            backends,
            lengths,
            ..route
        }
    }
}

impl RouteRule {
    /// The rule of a configured model. `backends` are the ids of all backends, by position.
    pub(in crate::backend) fn resolve(model: &ModelConfig, backends: &[BackendId]) -> Self {
        let eligible_positions = model.backends.as_ref().map(|names| {
            let is_listed = |id: &BackendId| names.iter().any(|name| name == id.as_str());
            backends.iter().map(is_listed).collect()
        });
        let versions = model.split.iter().map(|version| version.model.as_str());
        let route = ModelRoute {
            served_as: model.alias_of().map(Arc::from),
            renames_response: model.rename_response,
            is_expected: true,
            policy: model.policy,
            permissions: Permissions::new(&model.allow),
            caps: model.caps.clone().map(Arc::new),
            ..ModelRoute::default()
        };
        Self {
            name: model.name.as_str().into(),
            versions: versions.map(Arc::from).collect(),
            eligible_positions,
            route,
        }
    }

    /// The rules of the models that backends list and the configuration does not name.
    fn discovered<'a>(
        configured: &[Self],
        listed: impl Iterator<Item = &'a Arc<str>>,
    ) -> Vec<Self> {
        let configured: HashSet<&Arc<str>> = configured.iter().map(|rule| &rule.name).collect();
        let discovered = listed.filter(|name| !configured.contains(name));
        discovered
            .map(|name| Self {
                name: name.clone(),
                ..Self::default()
            })
            .collect()
    }

    /// The model name that the backends use.
    fn target(&self) -> &Arc<str> {
        self.route.served_as.as_ref().unwrap_or(&self.name)
    }

    /// The route of the model. `entries`: the backends that list the model. `unlisted`: the backends whose
    /// model list is not known yet.
    fn route(
        &self,
        label: ModelLabel,
        entries: &[(&BackendGroup<'_>, &ServedModel)],
        unlisted: &[usize],
        shared: &mut SharedLists,
    ) -> ModelRoute {
        let serving = entries
            .iter()
            .flat_map(|(group, _)| &group.positions)
            .chain(unlisted);
        let eligible = serving
            .copied()
            .filter(|position| self.is_eligible(*position));
        let listed = entries
            .iter()
            .map(|(group, model)| (&*group.positions, model.max_len));
        let is_adapter = entries.iter().any(|(_, model)| model.parent.is_some());
        let route = ModelRoute {
            label,
            adapter_hash: is_adapter.then(|| adapter_hash(self.target())),
            ..self.route.clone()
        };
        shared.route(route, eligible, listed)
    }

    /// The entry of the model for `/v1/models`, copied from the first eligible backend that lists
    /// the model. `None`: no eligible backend lists the model.
    fn model_entry(&self, entries: &[(&BackendGroup<'_>, &ServedModel)]) -> Option<ServedModel> {
        let first_position = |group: &BackendGroup<'_>| {
            group
                .positions
                .iter()
                .copied()
                .find(|position| self.is_eligible(*position))
        };
        let eligible = entries
            .iter()
            .filter_map(|(group, model)| Some((first_position(group)?, model)));
        let (_, model) = eligible.min_by_key(|(position, _)| *position)?;
        Some(model.called(&self.name))
    }

    /// Whether the backend at `position` may serve the model.
    fn is_eligible(&self, position: usize) -> bool {
        self.eligible_positions
            .as_ref()
            .is_none_or(|eligible| eligible[position])
    }
}

#[cfg(test)]
pub(super) mod tests;

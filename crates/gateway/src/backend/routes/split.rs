//! The routes of models whose requests are split over versions.

use super::model_labels::ModelLabelTable;
use super::{ModelConfig, ModelRoute, RouteRule, SharedLists};
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::iter;
use std::sync::Arc;
use tokenweir_engine::address::BackendId;
use tokenweir_engine::model::ServedModel;
use tokenweir_request::record::ModelLabel;

impl RouteRule {
    /// Adds the routes of split models to the routes of their versions, and the entries of split models to
    /// `models`.
    pub(super) fn add_split_routes(
        rules: &[Self],
        labels: &ModelLabelTable,
        shared: &mut SharedLists,
        by_name: &mut HashMap<Arc<str>, Arc<ModelRoute>>,
        models: &mut Vec<ServedModel>,
    ) {
        for rule in rules.iter().filter(|rule| !rule.versions.is_empty()) {
            let entry = rule.split_entry(models);
            models.extend(entry);
            let label = labels.label_for(&rule.name);
            let route = rule.split_route(label, by_name, shared);
            by_name.insert(rule.name.clone(), route.into());
        }
    }

    /// The rules of the configured models, and of versions that only a split names. `backends` are the ids of
    /// all backends, by position.
    pub(in crate::backend) fn resolve_all(
        models: &[ModelConfig],
        backends: &[BackendId],
    ) -> Vec<Self> {
        let resolved = models.iter().map(|model| Self::resolve(model, backends));
        let mut rules: Vec<Self> = resolved.collect();
        for version in models.iter().flat_map(|model| &model.split) {
            if rules.iter().all(|rule| *rule.name != *version.model) {
                rules.push(Self {
                    name: version.model.as_str().into(),
                    route: ModelRoute {
                        is_expected: true,
                        ..ModelRoute::default()
                    },
                    ..Self::default()
                });
            }
        }
        rules
    }

    /// The route of a split model, to the backends of all its versions.
    fn split_route(
        &self,
        label: ModelLabel,
        by_name: &HashMap<Arc<str>, Arc<ModelRoute>>,
        shared: &mut SharedLists,
    ) -> ModelRoute {
        let routes = self.versions.iter().filter_map(|name| by_name.get(name));
        let backends = routes.flat_map(|route| route.backends.iter().copied());
        let backends: BTreeSet<usize> = backends.collect();
        let route = ModelRoute {
            label,
            is_split: true,
            renames_response: self.route.renames_response,
            is_expected: true,
            ..ModelRoute::default()
        };
        shared.route(route, backends.into_iter(), iter::empty())
    }

    /// The entry of a split model for `/v1/models`, copied from the first version that has an entry.
    fn split_entry(&self, models: &[ServedModel]) -> Option<ServedModel> {
        let entry = |name: &Arc<str>| models.iter().find(|model| *model.id == **name);
        let first = self.versions.iter().find_map(entry)?;
        Some(first.called(&self.name))
    }
}

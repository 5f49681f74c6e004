//! The model lists of the backends.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokenweir_engine::model::ServedModel;

/// The models that each backend lists, by position. `None`: the backend has not listed its models
/// yet. Equal lists share one allocation.
pub(in crate::backend) type AdvertisedModels = [Option<Arc<[ServedModel]>>];

/// Stores each distinct model list once, so that all backends with equal lists share one
/// allocation.
#[derive(Debug, Default)]
pub(in crate::backend) struct ModelListInterner(pub(super) Vec<Arc<[ServedModel]>>);

/// The positions of all backends with the same model list.
pub(super) struct BackendGroup<'a> {
    pub(super) models: &'a [ServedModel],
    pub(super) positions: Vec<usize>,
}

/// The groups of backends that serve each model, with the entry of the model in their list.
pub(super) fn groups_by_model<'a>(
    groups: &'a [BackendGroup<'a>],
) -> HashMap<&'a Arc<str>, Vec<(&'a BackendGroup<'a>, &'a ServedModel)>> {
    let mut served: HashMap<_, Vec<(&BackendGroup<'_>, _)>> = HashMap::new();
    for group in groups {
        for model in group.models {
            let entries = served.entry(&model.id).or_default();
            if entries
                .last()
                .is_none_or(|(last, _)| !std::ptr::eq(*last, group))
            {
                entries.push((group, model));
            }
        }
    }
    served
}

impl<'a> BackendGroup<'a> {
    /// Groups the backends that have listed their models by their model list. Equal lists are
    /// detected by their shared allocation.
    pub(super) fn group_by_models(advertised: &'a AdvertisedModels) -> Vec<Self> {
        let mut by_list = HashMap::new();
        let mut groups: Vec<Self> = Vec::new();
        for (position, models) in advertised.iter().enumerate() {
            let Some(models) = models else { continue };
            let index = *by_list.entry(models.as_ptr()).or_insert(groups.len());
            if index == groups.len() {
                groups.push(Self {
                    models,
                    positions: Vec::new(),
                });
            }
            groups[index].positions.push(position);
        }
        groups
    }
}

impl ModelListInterner {
    /// The models in the lists of all backends. A list that several backends share is visited once.
    pub(in crate::backend) fn distinct_models(
        advertised: &AdvertisedModels,
    ) -> impl Iterator<Item = &ServedModel> {
        let mut seen = HashSet::new();
        let lists = advertised
            .iter()
            .flatten()
            .filter(move |list| seen.insert(list.as_ptr()));
        lists.flat_map(|list| list.iter())
    }

    /// Returns the stored list that equals `models`. If none is stored, stores `models`.
    pub(in crate::backend) fn intern(&mut self, models: &Arc<[ServedModel]>) -> Arc<[ServedModel]> {
        // Drops the lists that no backend has any more.
        self.0.retain(|list| Arc::strong_count(list) > 1);
        let stored = self
            .0
            .iter()
            .find(|list| ServedModel::are_equivalent(list, models))
            .cloned();
        stored.unwrap_or_else(|| {
            self.0.push(models.clone());
            models.clone()
        })
    }
}

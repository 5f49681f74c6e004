//! Assigns metric label values to models. Backends choose their model ids, so the number of label values must
//! be bounded. The first models get one label value each, and keep it while a backend lists them. All other
//! models share the label value `_other`. The label value does not affect how the gateway serves a model.

use crate::status::LabelledModel;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::model::ServedModel;
use tokenweir_request::record::ModelLabel;

/// The models that have a label value of their own in metrics.
#[derive(Debug)]
pub(in crate::backend) struct ModelLabelTable {
    /// Maximum number of label values for models that the configuration does not name.
    pub(in crate::backend) max_labels: usize,
    /// Number of label values that were assigned since the start of the gateway.
    assigned_count: u64,
    /// The assigned label of each model, by model name, which is the label value.
    by_name: HashMap<Arc<str>, AssignedLabel>,
}

#[derive(Debug)]
struct AssignedLabel {
    /// Number of label values that were assigned before this one.
    sequence: u64,
    is_configured: bool,
    /// Whether the model is a LoRA adapter.
    is_adapter: bool,
    /// Time since which neither a backend nor the configuration lists the model. `None`: a backend
    /// or the configuration lists it.
    absent_since: Option<Instant>,
}

/// Default maximum number of label values for models that only backends list. Models that the
/// configuration names do not count.
pub const DEFAULT_MAX_MODEL_LABELS: usize = 200;
/// Time for which the label value and the time series of a removed model remain, so that Prometheus can scrape
/// the last values.
pub(super) const LABEL_RETENTION: Duration = Duration::from_mins(10);
/// Maximum number of listed base models whose time series exist before their first request. The time series of
/// other models and of LoRA adapters begin with the first request, because one model takes 39 KiB of the
/// metrics page per backend.
const MAX_SEEDED_MODELS: usize = 16;

impl ModelLabelTable {
    /// An empty table. `max_labels` limits the label values of models that only backends list.
    pub(in crate::backend) fn new(max_labels: usize) -> Self {
        Self {
            max_labels,
            assigned_count: 0,
            by_name: HashMap::new(),
        }
    }

    /// Assigns label values to the models that the configuration names (`configured`) and that backends
    /// list (`listed`). Removes the label values of models that have been neither configured nor listed
    /// for [`LABEL_RETENTION`].
    pub(in crate::backend) fn update<'a>(
        &mut self,
        configured: impl Iterator<Item = &'a Arc<str>>,
        listed: impl Iterator<Item = &'a ServedModel>,
        now: Instant,
    ) {
        let configured: Vec<&Arc<str>> = configured.collect();
        let listed: Vec<&ServedModel> = listed.collect();
        let names = configured.iter().map(|name| &***name);
        let configured_names: HashSet<&str> = names.clone().collect();
        let present: HashSet<&str> = names.chain(listed.iter().map(|model| &*model.id)).collect();
        self.by_name.retain(|name, label| {
            label.is_configured = configured_names.contains(&**name);
            label.absent_since =
                (!present.contains(&**name)).then(|| label.absent_since.unwrap_or(now));
            !label.is_expired(now)
        });
        for name in configured {
            self.assign(name, true, false);
        }
        let mut remaining = self.max_labels.saturating_sub(self.discovered_count());
        for model in listed {
            if remaining == 0 {
                break;
            }
            remaining -= usize::from(self.assign(&model.id, false, model.parent.is_some()));
        }
    }

    /// The label of a model that a backend or the configuration lists: the label value of the
    /// model, or `_other` if the model has no label value of its own.
    pub(in crate::backend) fn label_for(&self, name: &Arc<str>) -> ModelLabel {
        match self.by_name.get_key_value(name) {
            Some((name, _)) => ModelLabel::Known(name.clone()),
            None => ModelLabel::OverLimit(name.clone()),
        }
    }

    /// The models with a label value of their own, in the order of assignment. Includes the models
    /// that were removed within the last [`LABEL_RETENTION`].
    pub(in crate::backend) fn labelled_models(&self, now: Instant) -> Vec<LabelledModel> {
        let current = self
            .by_name
            .iter()
            .filter(|(_, label)| !label.is_expired(now));
        let mut all: Vec<_> = current.collect();
        all.sort_unstable_by_key(|(_, label)| label.sequence);
        let mut base_count = 0;
        let labelled = all.into_iter().map(|(name, label)| {
            let is_base = label.absent_since.is_none() && !label.is_configured && !label.is_adapter;
            base_count += usize::from(is_base);
            let is_seeded = label.is_configured || (is_base && base_count <= MAX_SEEDED_MODELS);
            LabelledModel {
                name: name.clone(),
                is_seeded,
            }
        });
        labelled.collect()
    }

    /// Number of label values that count towards `max_labels`: the models that the configuration does not name.
    fn discovered_count(&self) -> usize {
        self.by_name
            .values()
            .filter(|label| !label.is_configured)
            .count()
    }

    /// Assigns a label value to a model without one. Returns whether a label value was assigned.
    fn assign(&mut self, name: &Arc<str>, is_configured: bool, is_adapter: bool) -> bool {
        if self.by_name.contains_key(name) {
            return false;
        }
        let label = AssignedLabel {
            sequence: self.assigned_count,
            is_configured,
            is_adapter,
            absent_since: None,
        };
        self.assigned_count += 1;
        self.by_name.insert(name.clone(), label);
        true
    }
}

impl AssignedLabel {
    /// Whether the model has been absent for [`LABEL_RETENTION`] or longer.
    fn is_expired(&self, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= LABEL_RETENTION;
        self.absent_since.is_some_and(is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::model_list;
    use super::*;
    use tokenweir_protocol::clock;

    fn update_labels(
        labels: &mut ModelLabelTable,
        configured: &[&str],
        listed: &[&str],
        now: Instant,
    ) {
        let configured: Vec<Arc<str>> = configured.iter().map(|name| (*name).into()).collect();
        labels.update(configured.iter(), model_list(listed).iter(), now);
    }

    fn has_own_label(labels: &ModelLabelTable, name: &str) -> bool {
        labels.label_for(&name.into()).as_str() == name
    }

    fn label_names(labels: &ModelLabelTable, now: Instant) -> Vec<String> {
        labels
            .labelled_models(now)
            .iter()
            .map(|label| label.name.to_string())
            .collect()
    }

    #[test]
    fn the_first_models_keep_their_labels() {
        let (mut labels, now) = (ModelLabelTable::new(2), clock::now());
        update_labels(&mut labels, &[], &["a", "b", "c"], now);
        for listed in [&["c", "b", "a"][..], &["d", "c", "b", "a"], &["b", "a"]] {
            update_labels(&mut labels, &[], listed, now);
            assert_eq!(label_names(&labels, now), ["a", "b"]);
        }
        let other = labels.label_for(&"c".into());
        assert_eq!(
            (other.as_str(), other.name(), other.is_known()),
            ("_other", "c", true)
        );
    }

    #[test]
    fn configured_models_always_have_a_label() {
        let (mut labels, now) = (ModelLabelTable::new(1), clock::now());
        update_labels(&mut labels, &[], &["a", "b"], now);
        update_labels(&mut labels, &["x", "b"], &["a", "b"], now);
        assert_eq!(label_names(&labels, now), ["a", "x", "b"]);
        update_labels(&mut labels, &["x"], &["a", "b", "c"], now);
        assert!(has_own_label(&labels, "b"), "it is still listed");
        assert!(!has_own_label(&labels, "c"));
    }

    #[test]
    fn a_removed_model_keeps_its_label_awhile() {
        let (mut labels, now) = (ModelLabelTable::new(1), clock::now());
        update_labels(&mut labels, &[], &["a"], now);
        update_labels(&mut labels, &[], &["b"], now);
        let before = now + LABEL_RETENTION.checked_sub(Duration::from_secs(1)).unwrap();
        update_labels(&mut labels, &[], &["b", "c"], before);
        assert_eq!(label_names(&labels, before), ["a"]);
        update_labels(&mut labels, &[], &["a", "b"], before);
        update_labels(&mut labels, &[], &["b"], before);
        assert_eq!(
            label_names(&labels, now + LABEL_RETENTION),
            ["a"],
            "it was listed again"
        );
        let after = before + LABEL_RETENTION;
        assert_eq!(label_names(&labels, after), [""; 0]);
        update_labels(&mut labels, &[], &["b", "c"], after);
        assert_eq!(label_names(&labels, after), ["b"]);
    }

    #[test]
    fn adapters_have_no_series_before_requests() {
        let (mut labels, now) = (ModelLabelTable::new(DEFAULT_MAX_MODEL_LABELS), clock::now());
        let bases: Vec<String> = (0..MAX_SEEDED_MODELS + 3)
            .map(|number| format!("base{number}"))
            .collect();
        let mut listed: Vec<&str> = vec!["base0:adapter"];
        listed.extend(bases.iter().map(String::as_str));
        update_labels(&mut labels, &["alias"], &listed, now);
        let all = labels.labelled_models(now);
        let seeded = all.iter().filter(|label| label.is_seeded);
        assert_eq!(
            (all.len(), seeded.count()),
            (listed.len() + 1, MAX_SEEDED_MODELS + 1)
        );
        let adapter = all.iter().find(|label| &*label.name == "adapter").unwrap();
        assert!(!adapter.is_seeded);
    }
}

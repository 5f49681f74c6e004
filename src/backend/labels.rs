//! Which models are label values. Backends choose the ids of their models, so the number of those
//! that have a label of their own is bounded: the first that come get one, and keep it while a
//! backend lists them. All others stand under `_other`, and are served like any model.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_core::model::Model;
use tokenweir_core::record::ModelLabel;

/// The models that have a label of their own.
#[derive(Debug)]
pub(super) struct Labels {
    most: usize,
    /// How many ever got one.
    given: u64,
    by_name: HashMap<Arc<str>, Given>,
}

/// A label that was given to a model.
#[derive(Debug)]
struct Given {
    number: u64,
    is_configured: bool,
    is_adapter: bool,
    /// Since when neither a backend nor the configuration has the model.
    gone: Option<Instant>,
}

/// A label value of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledModel {
    /// The value.
    pub name: Arc<str>,
    /// Whether its series are made before its first request.
    pub is_seeded: bool,
}

/// Models of backends that have a label of their own, unless it is configured otherwise. Names of
/// the configuration do not count.
pub const MOST_LABELS: usize = 200;
/// How long the label and the series of a model last after the model is gone: long enough for every
/// usual scraper to read the last values.
const RETENTION: Duration = Duration::from_mins(10);
/// Base models of backends whose series are made before their first request. Adapters get theirs
/// with their first request: the series of one model are 39 KiB of a page for each backend.
const MOST_SEEDED: usize = 16;

impl Labels {
    /// None yet, and at most this many for models that only backends name.
    pub(super) fn new(most: usize) -> Self {
        Self { most, given: 0, by_name: HashMap::new() }
    }

    /// Has another bound. Labels that were given stay.
    pub(super) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// The configuration has these names, and backends list these models.
    pub(super) fn renew<'a>(
        &mut self,
        configured: impl Iterator<Item = &'a Arc<str>>,
        listed: impl Iterator<Item = &'a Model>,
        now: Instant,
    ) {
        let configured: Vec<&Arc<str>> = configured.collect();
        let listed: Vec<&Model> = listed.collect();
        let names = configured.iter().map(|name| &***name);
        let named: HashSet<&str> = names.clone().collect();
        let present: HashSet<&str> = names.chain(listed.iter().map(|model| &*model.id)).collect();
        self.by_name.retain(|name, given| {
            given.is_configured = named.contains(&**name);
            given.gone = (!present.contains(&**name)).then(|| given.gone.unwrap_or(now));
            !given.is_over(now)
        });
        for name in configured {
            self.give(name, true, false);
        }
        let mut left = self.most.saturating_sub(self.taken());
        for model in listed {
            if left == 0 {
                break;
            }
            left -= usize::from(self.give(&model.id, false, model.parent.is_some()));
        }
    }

    /// The label of a model that a backend lists or the configuration names.
    pub(super) fn of(&self, name: &Arc<str>) -> ModelLabel {
        match self.by_name.get_key_value(name) {
            Some((name, _)) => ModelLabel::known(name.clone()),
            None => ModelLabel::folded(name.clone()),
        }
    }

    /// The labels that there are, in the order in which they were given. Those of models that went
    /// away lately are among them.
    pub(super) fn all(&self, now: Instant) -> Vec<LabelledModel> {
        let lasting = self.by_name.iter().filter(|(_, given)| !given.is_over(now));
        let mut all: Vec<_> = lasting.collect();
        all.sort_unstable_by_key(|(_, given)| given.number);
        let mut bases = 0;
        let labelled = all.into_iter().map(|(name, given)| {
            let is_base = given.gone.is_none() && !given.is_configured && !given.is_adapter;
            bases += usize::from(is_base);
            let is_seeded = given.is_configured || (is_base && bases <= MOST_SEEDED);
            LabelledModel { name: name.clone(), is_seeded }
        });
        labelled.collect()
    }

    /// Labels that count towards the bound.
    fn taken(&self) -> usize {
        self.by_name.values().filter(|given| !given.is_configured).count()
    }

    /// Whether it is a new one.
    fn give(&mut self, name: &Arc<str>, is_configured: bool, is_adapter: bool) -> bool {
        if self.by_name.contains_key(name) {
            return false;
        }
        let given = Given { number: self.given, is_configured, is_adapter, gone: None };
        self.given += 1;
        self.by_name.insert(name.clone(), given);
        true
    }
}

impl Given {
    fn is_over(&self, now: Instant) -> bool {
        self.gone.is_some_and(|gone| now.saturating_duration_since(gone) >= RETENTION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokenweir_core::clock;

    fn models(ids: &[&str]) -> Vec<Model> {
        let entry = |id: &&str| match id.split_once(':') {
            Some((parent, id)) => json!({ "id": id, "parent": parent }),
            None => json!({ "id": id }),
        };
        ids.iter().map(|id| Model::of(&entry(id)).unwrap()).collect()
    }

    fn renew(labels: &mut Labels, configured: &[&str], listed: &[&str], now: Instant) {
        let configured: Vec<Arc<str>> = configured.iter().map(|name| (*name).into()).collect();
        labels.renew(configured.iter(), models(listed).iter(), now);
    }

    fn is_own(labels: &Labels, name: &str) -> bool {
        labels.of(&name.into()).as_str() == name
    }

    fn names(labels: &Labels, now: Instant) -> Vec<String> {
        labels.all(now).iter().map(|label| label.name.to_string()).collect()
    }

    #[test]
    fn the_first_models_keep_their_labels_whatever_comes_after_them() {
        let (mut labels, now) = (Labels::new(2), clock::now());
        renew(&mut labels, &[], &["a", "b", "c"], now);
        for listed in [&["c", "b", "a"][..], &["d", "c", "b", "a"], &["b", "a"]] {
            renew(&mut labels, &[], listed, now);
            assert_eq!(names(&labels, now), ["a", "b"]);
        }
        let other = labels.of(&"c".into());
        assert_eq!((other.as_str(), other.name(), other.is_known()), ("_other", "c", true));
    }

    #[test]
    fn a_name_of_the_configuration_has_its_label_beyond_the_bound() {
        let (mut labels, now) = (Labels::new(1), clock::now());
        renew(&mut labels, &[], &["a", "b"], now);
        renew(&mut labels, &["x", "b"], &["a", "b"], now);
        assert_eq!(names(&labels, now), ["a", "x", "b"]);
        renew(&mut labels, &["x"], &["a", "b", "c"], now);
        assert!(is_own(&labels, "b"), "it is still listed");
        assert!(!is_own(&labels, "c"));
    }

    #[test]
    fn a_model_that_is_gone_has_its_label_for_a_time_and_then_another_gets_it() {
        let (mut labels, now) = (Labels::new(1), clock::now());
        renew(&mut labels, &[], &["a"], now);
        renew(&mut labels, &[], &["b"], now);
        let before = now + RETENTION.checked_sub(Duration::from_secs(1)).unwrap();
        renew(&mut labels, &[], &["b", "c"], before);
        assert_eq!(names(&labels, before), ["a"]);
        renew(&mut labels, &[], &["a", "b"], before);
        renew(&mut labels, &[], &["b"], before);
        assert_eq!(names(&labels, now + RETENTION), ["a"], "it came back meanwhile");
        let after = before + RETENTION;
        assert_eq!(names(&labels, after), [""; 0]);
        renew(&mut labels, &[], &["b", "c"], after);
        assert_eq!(names(&labels, after), ["b"]);
    }

    #[test]
    fn adapters_and_base_models_beyond_the_first_are_not_seeded() {
        let (mut labels, now) = (Labels::new(MOST_LABELS), clock::now());
        let bases: Vec<String> =
            (0..MOST_SEEDED + 3).map(|number| format!("base{number}")).collect();
        let mut listed: Vec<&str> = vec!["base0:adapter"];
        listed.extend(bases.iter().map(String::as_str));
        renew(&mut labels, &["alias"], &listed, now);
        let all = labels.all(now);
        let seeded = all.iter().filter(|label| label.is_seeded);
        assert_eq!((all.len(), seeded.count()), (listed.len() + 1, MOST_SEEDED + 1));
        let adapter = all.iter().find(|label| &*label.name == "adapter").unwrap();
        assert!(!adapter.is_seeded);
    }
}

//! Detects changes in how engines were started: their weights, context length, KV cache and version.

use super::changes::common_subject;
use super::fleet::FleetBackend;
use super::verdict::Change;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;

/// The known facts of each backend, and their changes.
#[derive(Debug, Default)]
pub(super) struct FactHistory {
    known: HashMap<BackendId, HashMap<&'static str, String>>,
    /// The changes of the last [`SHOWN_FOR`], the oldest first.
    changes: Vec<FactChange>,
}

#[derive(Debug, Clone)]
struct FactChange {
    backend: BackendId,
    name: &'static str,
    before: String,
    value: String,
    at: Instant,
}

const SHOWN_FOR: Duration = Duration::from_mins(15);
/// Maximum number of backends that a common change lists by name.
const MAX_NAMED: usize = 3;
/// Maximum number of changes that are kept.
const MAX_KEPT: usize = 256;

impl FactHistory {
    /// Takes the facts of all backends at `now`. Returns the changes, the newest first. A change that most
    /// backends have in common is returned once.
    pub(super) fn observe(&mut self, backends: &[FleetBackend], now: Instant) -> Vec<Change> {
        self.known
            .retain(|id, _| backends.iter().any(|backend| backend.id == *id));
        self.changes.retain(|change| {
            now.saturating_duration_since(change.at) < SHOWN_FOR
                && backends.iter().any(|backend| backend.id == change.backend)
        });
        for backend in backends {
            let known = self.known.entry(backend.id.clone()).or_default();
            for (name, value) in &backend.facts {
                if let Some(before) = known.insert(name, value.clone())
                    && before != *value
                    && self.changes.len() < MAX_KEPT
                {
                    self.changes.push(FactChange {
                        backend: backend.id.clone(),
                        name,
                        before,
                        value: value.clone(),
                        at: now,
                    });
                }
            }
        }
        self.shown(backends.len(), now)
    }

    fn shown(&self, backends: usize, now: Instant) -> Vec<Change> {
        let mut shown: Vec<Change> = Vec::new();
        for change in self.changes.iter().rev() {
            let same = self.changes.iter().filter(|other| change.is_same(other));
            let names: BTreeSet<&str> = same.map(|other| other.backend.as_str()).collect();
            let mut common = common_subject(names.len(), backends);
            if (2..=MAX_NAMED).contains(&names.len()) && names.len() < backends {
                common = Some(Vec::from_iter(names).join(" and "));
            }
            let backend = match common {
                Some(_) => String::new(),
                None => change.backend.to_string(),
            };
            let subject = common.as_deref().unwrap_or(&backend);
            let FactChange {
                name,
                before,
                value,
                ..
            } = change;
            let words = format!("{subject}: {name} {value}, before {before}");
            if shown.iter().all(|known| known.words != words) {
                shown.push(Change {
                    words,
                    backend,
                    measure: (*name).into(),
                    factor: 1.0,
                    age_seconds: now.saturating_duration_since(change.at).as_secs_f64(),
                });
            }
        }
        shown
    }
}

impl FactChange {
    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.before == other.before && self.value == other.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AttemptCounts;
    use tokenweir_protocol::clock;
    use tokenweir_routing::resilience::Availability;

    fn fleet(lengths: &[u32]) -> Vec<FleetBackend> {
        let backend = |(number, length): (usize, &u32)| FleetBackend {
            id: BackendId::new(&format!("gpu-{number}")),
            host: "127.0.0.1".into(),
            models: Vec::new(),
            state: Availability::Available,
            is_up: true,
            reason: None,
            drain: None,
            attempts: AttemptCounts::default(),
            restarts: 0,
            engine_switches: 0,
            facts: vec![("max_model_len", length.to_string())],
        };
        lengths.iter().enumerate().map(backend).collect()
    }

    fn words(changes: Vec<Change>) -> Vec<String> {
        changes.into_iter().map(|change| change.words).collect()
    }

    #[test]
    fn a_change_is_shown_for_15_minutes() {
        let mut facts = FactHistory::default();
        let start = clock::epoch();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(facts.observe(&fleet(&[8, 8]), at(0)), []);
        let one = ["gpu-0: max_model_len 2, before 8"];
        assert_eq!(words(facts.observe(&fleet(&[2, 8]), at(5))), one);
        let mut of_three = FactHistory::default();
        of_three.observe(&fleet(&[8, 8, 8]), at(0));
        let two = ["gpu-0 and gpu-2: max_model_len 2, before 8"];
        assert_eq!(words(of_three.observe(&fleet(&[2, 8, 2]), at(5))), two);
        let all = ["all backends: max_model_len 2, before 8"];
        assert_eq!(words(facts.observe(&fleet(&[2, 2]), at(10))), all);
        assert_eq!(words(facts.observe(&fleet(&[2, 2]), at(904))), all);
        assert_eq!(facts.observe(&fleet(&[2, 2]), at(911)), []);
    }
}

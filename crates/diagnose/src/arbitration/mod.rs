//! Arbitration between verdicts: if one verdict is the consequence of another one, only the cause is reported
//! as a problem, and the consequence becomes a note.
//!
//! A verdict has an [`Effect`], which is the kind of harm that it observes, and an [`Origin`], which is where
//! it places the cause. A verdict follows from another one if the origin of the other one is more specific and
//! explains the effect, at the same backend or at most backends.

use crate::fleet::FleetBackend;
use crate::verdict::{Effect, Origin, Verdict, VerdictScope, VerdictSeverity};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Maximum number of backends that a consequence names.
const MAX_NAMED: usize = 3;
/// Rules about too much work. Their verdicts name the client that causes most of the work.
const RULES_ABOUT_WORK: [&str; 6] = [
    "abort_spike",
    "shedding",
    "gateway_queue",
    "prefill_starvation",
    "kv_thrashing",
    "kv_backlog",
];

const CLIENT_REMEDY: &str =
    "Limit this client (limits of its tenant), or give it a lower class (admission.classes).";

/// Adds to the verdicts the client that causes most of the work, and whether all backends have the same
/// verdict. Turns each verdict that follows from another one into a note, and raises the severity of the other
/// one to at least that of the note.
pub(crate) fn arbitrate(
    verdicts: &mut [Verdict],
    backends: &[FleetBackend],
    main_client: Option<&str>,
) {
    if let Some(client) = main_client {
        name_client(verdicts, client);
    }
    let found = Findings::new(backends, verdicts);
    for verdict in verdicts.iter_mut() {
        verdict.is_common = found.is_at_all(verdict);
        if let Some(host) = found.host_of(verdict) {
            verdict.add_to_cause(&host);
        }
    }
    // A consequence can itself be a cause, so the least specific origins come first.
    let mut order: Vec<usize> = (0..verdicts.len()).collect();
    order.sort_by_key(|index| verdicts[*index].origin);
    for index in order {
        let effect = &verdicts[index];
        let severity = effect.severity;
        let causes = verdicts.iter().filter(|it| found.explains(it, effect));
        let Some(cause) = causes.max_by_key(|cause| cause.origin).cloned() else {
            continue;
        };
        let subjects = found.subjects(&cause, verdicts);
        let sentence = format!("follows from {} at {subjects}", cause.verdict);
        for verdict in verdicts.iter_mut().filter(|it| it.has_finding_of(&cause)) {
            verdict.severity = verdict.severity.max(severity);
        }
        let effect = &mut verdicts[index];
        effect.severity = VerdictSeverity::Info;
        effect.cause = Some(sentence.into());
        effect.remedy = format!("See {}.", cause.verdict);
    }
}

/// Adds the client that causes most of the work to the verdicts about too much work.
fn name_client(verdicts: &mut [Verdict], client: &str) {
    let about_work = verdicts.iter_mut().filter(|verdict| {
        // If a verdict names its clients itself, no other client is added.
        verdict.severity > VerdictSeverity::Info
            && verdict.origin != Origin::Client
            && RULES_ABOUT_WORK.contains(&&*verdict.verdict)
    });
    for verdict in about_work {
        verdict.add_to_cause(client);
        if verdict.origin == Origin::Load {
            verdict.remedy = format!("{CLIENT_REMEDY} {}", verdict.remedy);
        }
        if verdict.origin == Origin::Load && verdict.scope == VerdictScope::Fleet {
            verdict.origin = Origin::Client;
        }
    }
}

/// The verdicts of one diagnosis and the backends that they concern, for the search for causes.
struct Findings<'a> {
    backends: &'a [FleetBackend],
    /// The names of the backends with each finding. They are collected once, because a large fleet can have a
    /// verdict about each backend.
    subjects: HashMap<Finding, HashSet<String>>,
}

/// A condition together with the kind of its cause. Two backends have the same finding if both parts are equal.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Finding {
    verdict: Cow<'static, str>,
    origin: Origin,
    is_note: bool,
}

impl<'a> Findings<'a> {
    fn new(backends: &'a [FleetBackend], verdicts: &[Verdict]) -> Self {
        let mut subjects: HashMap<Finding, HashSet<String>> = HashMap::new();
        for verdict in verdicts {
            let names = subjects.entry(Finding::of(verdict)).or_default();
            names.insert(verdict.backend.clone());
        }
        Self { backends, subjects }
    }

    /// The backends that had the finding of this verdict before the arbitration. `None`: the verdict has become
    /// a note.
    fn backends_with(&self, verdict: &Verdict) -> Option<&HashSet<String>> {
        self.subjects.get(&Finding::of(verdict))
    }

    fn count(&self, verdict: &Verdict) -> usize {
        self.backends_with(verdict).map_or(0, HashSet::len)
    }

    fn explains(&self, cause: &Verdict, effect: &Verdict) -> bool {
        cause.severity > VerdictSeverity::Info
            && effect.severity > VerdictSeverity::Info
            && cause.origin > effect.origin
            && cause.origin.explains(Effect::of(&effect.verdict))
            && self.covers(cause, effect)
    }

    /// Whether the verdict `cause` concerns the same requests as the verdict `effect`.
    fn covers(&self, cause: &Verdict, effect: &Verdict) -> bool {
        if cause.backend == effect.backend || cause.scope == VerdictScope::Gateway {
            return true;
        }
        match cause.origin {
            // If a backend gets no requests, the other backends with its models get more.
            Origin::Missing => self.share_models(&cause.backend, &effect.backend),
            // A verdict that shows a fault of one backend against its peers does not follow from a common cause.
            _ if effect.origin == Origin::Engine => false,
            _ => cause.scope == VerdictScope::Fleet || self.is_at_most(cause),
        }
    }

    /// Whether more than one backend, and more than half of the backends that get requests, have the same
    /// finding.
    fn is_at_most(&self, verdict: &Verdict) -> bool {
        let count = self.count(verdict);
        let up = self.backends.iter().filter(|backend| backend.is_up);
        count > 1 && 2 * count > up.count()
    }

    fn is_at_all(&self, verdict: &Verdict) -> bool {
        verdict.scope == VerdictScope::Backend
            && self.backends.len() > 1
            && self.count(verdict) == self.backends.len()
    }

    /// The host in words, if all backends of one host and no other backends have this finding.
    fn host_of(&self, verdict: &Verdict) -> Option<String> {
        let found = self.backends_with(verdict)?;
        let count = found.len();
        if count < 2 || count == self.backends.len() || verdict.severity == VerdictSeverity::Info {
            return None;
        }
        let host = &self.backend(&verdict.backend)?.host;
        let mut backends = self.backends.iter();
        let is_host = backends.all(|it| found.contains(it.id.as_str()) == (it.host == *host));
        is_host.then(|| {
            format!("all {count} backends of the host {host}, and no others: look at the host")
        })
    }

    /// Whether both backends serve a common model, as far as known. An empty backend name stands for all
    /// backends.
    fn share_models(&self, one: &str, other: &str) -> bool {
        let (Some(one), Some(other)) = (self.backend(one), self.backend(other)) else {
            return true;
        };
        one.models.is_empty()
            || other.models.is_empty()
            || one.models.iter().any(|it| other.models.contains(it))
    }

    fn backend(&self, name: &str) -> Option<&FleetBackend> {
        self.backends.iter().find(|it| it.id.as_str() == name)
    }

    /// The names of the backends with the finding of the cause, as text.
    fn subjects(&self, cause: &Verdict, all: &[Verdict]) -> String {
        let same = all.iter().filter(|other| other.has_finding_of(cause));
        let names: Vec<&str> = same.map(Verdict::subject).collect();
        match names.len() {
            count if cause.is_common && count == self.backends.len() => "all backends".to_owned(),
            count if count > MAX_NAMED => format!("{count} backends"),
            _ => names.join(", "),
        }
    }
}

impl Finding {
    fn of(verdict: &Verdict) -> Self {
        Self {
            verdict: verdict.verdict.clone(),
            origin: verdict.origin,
            is_note: verdict.severity == VerdictSeverity::Info,
        }
    }
}

impl Verdict {
    /// Whether both verdicts place the same condition at the same kind of cause.
    fn has_finding_of(&self, other: &Self) -> bool {
        Finding::of(self) == Finding::of(other)
    }
}

#[cfg(test)]
mod tests;

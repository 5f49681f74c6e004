//! Arbitration between verdicts: a verdict that sees what another one causes follows from it, and accuses nobody.
//!
//! A verdict has an [`Effect`], which is what it sees, and an [`Origin`], which is where it places the cause. A verdict
//! follows from another one if that has a more specific origin that explains its effect, at the same backend or at most
//! of them.

use crate::fleet::FleetBackend;
use crate::verdict::{Effect, Origin, Verdict, VerdictScope, VerdictSeverity};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Maximum number of backends that a consequence names.
const MAX_NAMED: usize = 3;
/// Rules whose verdicts accuse a client if it causes most of the work.
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

/// Names the client that causes most of the work, and what is common to all backends. Turns verdicts that follow from
/// others into notes, and raises these others to the severity of what follows from them.
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
    // A consequence can be a cause itself, so the least specific ones are first.
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
        // A verdict that names its clients needs no other one.
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

/// The relations between verdicts about these backends.
struct Findings<'a> {
    backends: &'a [FleetBackend],
    /// The backends with each finding, by name. A large fleet can have a verdict about each backend, so they are
    /// collected once.
    subjects: HashMap<Finding, HashSet<String>>,
}

/// The same condition at the same kind of cause.
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

    /// The backends that had the finding of a verdict before the arbitration. `None`: it has become a note.
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

    /// Whether the cause concerns the requests of the effect.
    fn covers(&self, cause: &Verdict, effect: &Verdict) -> bool {
        if cause.backend == effect.backend || cause.scope == VerdictScope::Gateway {
            return true;
        }
        match cause.origin {
            // The peers of a backend that gets no requests get more.
            Origin::Missing => self.share_models(&cause.backend, &effect.backend),
            // A verdict that shows a fault of one backend against its peers does not follow from a common cause.
            _ if effect.origin == Origin::Engine => false,
            _ => cause.scope == VerdictScope::Fleet || self.is_at_most(cause),
        }
    }

    /// Whether more than half of the backends that get requests have the same finding, and more than one.
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

    /// The host whose backends have this finding, all of them and no others, in words.
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

    /// Whether both backends serve a model, as far as known. An empty name is that of all backends.
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

    /// The backends with the finding of the cause, in words.
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

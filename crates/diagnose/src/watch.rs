//! The watch over a fleet: it takes a moment of each replica at each look, judges every rule, and
//! says what has been found often enough to be believed.

use super::MAIN;
use super::anomaly;
use super::case::{Case, Found, Judgement};
use super::history::History;
use super::rules::{RULES, Rule};
use super::sample::Sample;
use super::steady::Steady;
use super::verdict::{CannotTell, Confidence, Diagnosis, Verdict, Watched};
use std::time::Instant;
use tokenweir_core::record::BackendId;

/// The watch over a fleet.
#[derive(Debug, Default)]
pub struct Watch {
    replicas: Vec<Replica>,
}

/// One replica, and how each rule stands with it.
#[derive(Debug)]
struct Replica {
    id: BackendId,
    history: History,
    standing: [Steady; RULES.len()],
    /// What was found last.
    found: [Option<Found>; RULES.len()],
}

/// What one look says of one replica, rule by rule.
type Look = [Result<Judgement, Vec<&'static str>>; RULES.len()];

/// With fewer moments in the fast window nothing is judged.
const LEAST_STEPS: usize = 9;
const TOO_SOON: &str = "45 seconds of samples";
const DOWN: &str = "an answer: the replica is down";

// === impl Watch ===

impl Watch {
    /// Takes a moment of each replica of the fleet, and says what is the matter at `now`. What is
    /// known of replicas that are not among them is forgotten.
    pub fn look(&mut self, samples: Vec<(BackendId, Sample)>, now: Instant) -> Diagnosis {
        self.replicas.retain(|known| samples.iter().any(|(id, _)| *id == known.id));
        for (id, sample) in samples {
            let replica = self.replica(id);
            let is_well = replica.standing.iter().all(|steady| steady.since().is_none());
            replica.history.take(sample, is_well);
        }
        let looks: Vec<Look> = (0..self.replicas.len()).map(|place| self.judge(place)).collect();
        let mut diagnosis = Diagnosis::default();
        for (replica, look) in self.replicas.iter_mut().zip(looks) {
            replica.tell(look, now, &mut diagnosis);
        }
        for place in 0..self.replicas.len() {
            self.notice(place, &mut diagnosis);
        }
        diagnosis.verdicts.sort_by_key(|verdict| std::cmp::Reverse(verdict.severity));
        diagnosis
    }

    fn replica(&mut self, id: BackendId) -> &mut Replica {
        let place = self.replicas.iter().position(|known| known.id == id).unwrap_or_else(|| {
            self.replicas.push(Replica::new(id));
            self.replicas.len() - 1
        });
        &mut self.replicas[place]
    }

    fn case(&self, place: usize) -> Case<'_> {
        let others = self.replicas.iter().enumerate().filter(|(other, _)| *other != place);
        let others = others.map(|(_, other)| &other.history).filter(|other| other.is_up());
        Case { history: &self.replicas[place].history, others: others.collect() }
    }

    fn judge(&self, place: usize) -> Look {
        let case = self.case(place);
        if !case.history.is_up() {
            return std::array::from_fn(|_| Err(vec![DOWN]));
        }
        if case.fast().len() < LEAST_STEPS {
            return std::array::from_fn(|_| Err(vec![TOO_SOON]));
        }
        std::array::from_fn(|rule| RULES[rule].judge(&case))
    }

    /// What is far from usual, and what moves together.
    fn notice(&self, place: usize, diagnosis: &mut Diagnosis) {
        let (id, case) = (self.replicas[place].id.as_str(), self.case(place));
        diagnosis.anomalies.extend(anomaly::anomalies(id, &case));
        diagnosis.pairs.extend(anomaly::pairs(id, case.history.window(MAIN)));
    }
}

// === impl Replica ===

impl Replica {
    fn new(id: BackendId) -> Self {
        Self {
            id,
            history: History::new(),
            standing: [Steady::default(); RULES.len()],
            found: [const { None }; RULES.len()],
        }
    }

    /// Takes what a look says, and tells what stands.
    fn tell(&mut self, look: Look, now: Instant, diagnosis: &mut Diagnosis) {
        let mut is_judged = false;
        for (place, judged) in look.into_iter().enumerate() {
            let rule = &RULES[place];
            let (found, missing) = match judged {
                Ok(Judgement::Present(found)) if !self.is_explained(rule) => (Some(found), None),
                Ok(Judgement::Present(_) | Judgement::Absent) => (None, None),
                Ok(Judgement::Unknown(reason)) => (None, Some(vec![reason])),
                Err(missing) => (None, Some(missing)),
            };
            // That a page cannot be read is no judgement of what would stand there.
            is_judged |= missing.is_none() && !rule.is_about_silence();
            self.standing[place].on_look(found.is_some(), now);
            if found.is_some() {
                self.found[place] = found;
            }
            if let Some(verdict) = self.verdict(place, now) {
                diagnosis.verdicts.push(verdict);
            } else if let Some(missing) = missing {
                let (verdict, backend) = (rule.name.into(), self.id.to_string());
                let missing = missing.into_iter().map(Into::into).collect();
                diagnosis.cannot_tell.push(CannotTell { verdict, backend, missing });
            }
        }
        diagnosis.backends.push(Watched { backend: self.id.to_string(), is_judged });
    }

    /// Whether a condition that explains this one stands, or was found in this look: those come
    /// first in the table.
    fn is_explained(&self, rule: &Rule) -> bool {
        let explains = |(other, standing): (&Rule, &Steady)| {
            rule.explained_by.contains(&other.name) && standing.is_near()
        };
        RULES.iter().zip(&self.standing).any(explains)
    }

    fn verdict(&mut self, place: usize, now: Instant) -> Option<Verdict> {
        let Some(since) = self.standing[place].since() else {
            if !self.standing[place].is_near() {
                self.found[place] = None;
            }
            return None;
        };
        let (rule, found) = (&RULES[place], self.found[place].as_ref()?);
        let remedy = match &found.remedy {
            Some(first) => format!("{first} {}", rule.remedy),
            None => rule.remedy.to_owned(),
        };
        Some(Verdict {
            verdict: rule.name.into(),
            backend: self.id.to_string(),
            severity: rule.severity,
            confidence: Confidence::of(found.signals),
            meaning: rule.meaning.into(),
            cause: found.cause.map(Into::into),
            age_seconds: now.saturating_duration_since(since).as_secs_f64(),
            evidence: found.evidence.clone(),
            remedy,
            disproof: rule.disproof.into(),
            runbook: rule.runbook(),
        })
    }
}

//! Logs the start and the end of each verdict of the diagnosis.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokenweir_diagnose::{Diagnosis, Verdict, VerdictSeverity};

/// Logs verdicts: one line when a verdict begins and one when it ends. A verdict of the severity *info*
/// is not logged: another line already reports the action that caused it, such as a drain.
#[derive(Debug, Default)]
pub(super) struct VerdictLog {
    /// The times at which the current verdicts began, by the names of their rule and of their backend.
    active: BTreeMap<(String, String), Instant>,
}

/// Maximum number of log lines for verdicts that begin, and for verdicts that end, at one
/// evaluation. One further line counts the rest.
const MAX_LINES: usize = 10;

/// Numbers of verdicts that began and that ended between two diagnoses.
#[derive(Debug, PartialEq)]
pub(super) struct VerdictChanges {
    begun: usize,
    ended: usize,
}

impl VerdictLog {
    /// Logs the verdicts that began or ended since the previous diagnosis.
    pub(super) fn record(&mut self, diagnosis: &Diagnosis, now: Instant) -> VerdictChanges {
        let key = |verdict: &Verdict| (verdict.verdict.to_string(), verdict.backend.clone());
        let is_logged = |verdict: &&Verdict| verdict.severity > VerdictSeverity::Info;
        let current: Vec<(_, &Verdict)> =
            diagnosis.verdicts.iter().filter(is_logged).map(|it| (key(it), it)).collect();
        let begun = current.iter().filter(|(key, _)| !self.active.contains_key(key));
        let begun: Vec<&Verdict> = begun.map(|(_, verdict)| *verdict).collect();
        let is_over = |key: &(String, String)| !current.iter().any(|(other, _)| other == key);
        let ended = self.active.iter().filter(|(key, _)| is_over(key));
        let ended: Vec<_> = ended.collect();
        for verdict in begun.iter().take(MAX_LINES) {
            tracing::warn!(
                verdict = &*verdict.verdict,
                backend = verdict.backend,
                severity = verdict.severity.as_str(),
                cause = verdict.cause.as_deref(),
                "verdict begins: {}",
                verdict.meaning
            );
        }
        for ((verdict, backend), begin) in ended.iter().take(MAX_LINES) {
            let seconds = now.saturating_duration_since(**begin).as_secs_f64().round() as u64;
            tracing::info!(verdict, backend, seconds, "verdict ended");
        }
        let changes = VerdictChanges { begun: begun.len(), ended: ended.len() };
        let more_begun = changes.begun.saturating_sub(MAX_LINES);
        let more_ended = changes.ended.saturating_sub(MAX_LINES);
        if more_begun + more_ended > 0 {
            tracing::warn!(more_begun, more_ended, "further verdicts began or ended");
        }
        let begin =
            |age: f64| now.checked_sub(Duration::try_from_secs_f64(age).unwrap_or_default());
        let begins = current.into_iter().map(|(key, it)| {
            let known = self.active.get(&key).copied();
            let begin = known.or_else(|| begin(it.age_seconds)).unwrap_or(now);
            (key, begin)
        });
        self.active = begins.collect();
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnosis(names: &[(&'static str, VerdictSeverity)]) -> Diagnosis {
        let verdict = |(name, severity): &(&'static str, VerdictSeverity)| Verdict {
            verdict: (*name).into(),
            severity: *severity,
            ..Verdict::default()
        };
        Diagnosis { verdicts: names.iter().map(verdict).collect(), ..Diagnosis::default() }
    }

    #[test]
    fn begin_and_end_are_logged_once() {
        use VerdictSeverity::{Critical, Info, Warning};
        let (mut log, now) = (VerdictLog::default(), tokenweir_protocol::clock::now());
        let changes = |begun, ended| VerdictChanges { begun, ended };
        let both = [("shedding", Critical), ("backend_down", Warning)];
        assert_eq!(log.record(&diagnosis(&both), now), changes(2, 0));
        assert_eq!(log.record(&diagnosis(&both), now), changes(0, 0));
        let other = [("shedding", Warning), ("backend_drained", Info)];
        let ended = log.record(&diagnosis(&other), now);
        assert_eq!(ended, changes(0, 1), "the severity is no new verdict");
        assert_eq!(log.record(&diagnosis(&[]), now), changes(0, 1));
    }
}

//! Logs the start and the end of each verdict of the diagnosis.

use std::collections::BTreeMap;
use std::mem;
use std::time::{Duration, Instant};
use tokenweir_diagnose::{Diagnosis, VerdictSeverity};

/// Logs verdicts: one line when a verdict begins and one when it ends. Verdicts of the severity *info* are not
/// logged, because another line already reports the action that caused them, such as a drain.
#[derive(Debug, Default)]
pub(super) struct VerdictLog {
    /// The times at which the current verdicts began, by the names of rule and backend.
    active: BTreeMap<(String, String), Instant>,
}

/// Maximum number of log lines per evaluation for verdicts that begin, and separately for verdicts that end.
/// One further line counts the rest.
const MAX_LINES: usize = 10;

/// Numbers of verdicts that began and ended between two diagnoses.
#[derive(Debug, PartialEq)]
pub(super) struct VerdictChanges {
    begun: usize,
    ended: usize,
}

impl VerdictLog {
    /// Logs the verdicts that began or ended since the previous diagnosis.
    pub(super) fn record(&mut self, diagnosis: &Diagnosis, now: Instant) -> VerdictChanges {
        let mut ended = mem::take(&mut self.active);
        let mut begun = Vec::new();
        for verdict in &diagnosis.verdicts {
            if verdict.severity == VerdictSeverity::Info {
                continue;
            }
            let key = (verdict.verdict.to_string(), verdict.backend.clone());
            let begin = ended.get(&key).copied().unwrap_or_else(|| {
                begun.push(verdict);
                let age = Duration::try_from_secs_f64(verdict.age_seconds).unwrap_or_default();
                now.checked_sub(age).unwrap_or(now)
            });
            self.active.insert(key, begin);
        }
        ended.retain(|key, _| !self.active.contains_key(key));
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
            let seconds = now.saturating_duration_since(*begin).as_secs_f64().round() as u64;
            tracing::info!(verdict, backend, seconds, "verdict ended");
        }
        let changes = VerdictChanges {
            begun: begun.len(),
            ended: ended.len(),
        };
        let more_begun = changes.begun.saturating_sub(MAX_LINES);
        let more_ended = changes.ended.saturating_sub(MAX_LINES);
        if more_begun + more_ended > 0 {
            tracing::warn!(more_begun, more_ended, "further verdicts began or ended");
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_diagnose::Verdict;

    fn diagnosis(names: &[(&'static str, VerdictSeverity)]) -> Diagnosis {
        let verdict = |(name, severity): &(&'static str, VerdictSeverity)| Verdict {
            verdict: (*name).into(),
            severity: *severity,
            ..Verdict::default()
        };
        Diagnosis {
            verdicts: names.iter().map(verdict).collect(),
            ..Diagnosis::default()
        }
    }

    #[test]
    fn start_and_end_of_verdicts_are_logged_once() {
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

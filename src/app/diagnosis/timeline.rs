//! Derives the marks of the timeline from the state of the gateway.

use crate::admin::{Admin, unix_seconds};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokenweir_api::{Mark, MarkKind};
use tokenweir_diagnose::{Diagnosis, Verdict, VerdictSeverity};
use tokenweir_engine::address::BackendId;
use tokenweir_gateway::backend::Backend;
use tokenweir_gateway::status::ConfigReloadStatus;

/// Finds the changes since the previous diagnosis.
#[derive(Default)]
pub(super) struct TimelineObserver {
    /// The last known version of the engine of each backend.
    versions: BTreeMap<BackendId, Arc<str>>,
    /// Numbers of successful and failed reloads.
    reloaded: u64,
    failed: u64,
}

impl TimelineObserver {
    /// Adds the changes to the timeline of the gateway.
    pub(super) fn observe(&mut self, admin: &Admin, diagnosis: &Diagnosis, now: SystemTime) {
        let backends = admin.proxy.pool.backends();
        let is_problem = |verdict: &&Verdict| verdict.severity > VerdictSeverity::Info;
        let verdicts = diagnosis.verdicts.iter().filter(is_problem);
        let mut held: Vec<Mark> = verdicts.map(|verdict| verdict_mark(verdict, now)).collect();
        held.extend(backends.iter().filter_map(|backend| drain_mark(backend)));
        let mut moments = self.deploys(&backends);
        moments.extend(self.reloads(admin));
        admin.timeline.observe(&held, moments, now);
    }

    fn deploys(&mut self, backends: &[Arc<Backend>]) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut versions = BTreeMap::new();
        for backend in backends {
            let id = &backend.identity.id;
            let before = self.versions.remove(id);
            // The version of a starting engine is unknown.
            let known = backend.health.state().version.clone();
            let Some(version) = known.or(before.clone()) else {
                continue;
            };
            if let Some(before) = before.filter(|before| *before != version) {
                marks.push(Mark {
                    kind: MarkKind::Deploy,
                    backend: id.to_string(),
                    name: format!("{before} → {version}"),
                    ..Mark::default()
                });
            }
            versions.insert(id.clone(), version);
        }
        self.versions = versions;
        marks
    }

    /// The reloads of the configuration since the previous diagnosis.
    fn reloads(&mut self, admin: &Admin) -> Option<Mark> {
        let ConfigReloadStatus { ok, failed, .. } = admin.configuration.reloads();
        let is_failed = failed > self.failed;
        let is_reloaded = ok > self.reloaded;
        self.reloaded = ok;
        self.failed = failed;
        if !is_failed && !is_reloaded {
            return None;
        }
        let problem = admin.configuration.reload_problem();
        Some(Mark {
            kind: MarkKind::Reload,
            name: if is_failed { "failed" } else { "ok" }.to_owned(),
            reason: problem.map_or_else(String::new, |problem| problem.to_string()),
            ..Mark::default()
        })
    }
}

fn verdict_mark(verdict: &Verdict, now: SystemTime) -> Mark {
    let age = Duration::try_from_secs_f64(verdict.age_seconds).unwrap_or_default();
    let began = now.checked_sub(age).unwrap_or(now);
    Mark {
        began: unix_seconds(began),
        kind: MarkKind::Verdict,
        backend: verdict.backend.clone(),
        name: verdict.verdict.to_string(),
        severity: Some(verdict.severity),
        reason: verdict.cause_or_meaning().to_owned(),
        ..Mark::default()
    }
}

/// The drain of a backend as a mark. `None`: the backend is not drained.
fn drain_mark(backend: &Backend) -> Option<Mark> {
    let drain = backend.health.drain()?;
    let reason = drain.reason.as_deref().map(|reason| format!(": {reason}"));
    Some(Mark {
        began: unix_seconds(drain.started),
        kind: MarkKind::Drain,
        backend: backend.identity.id.to_string(),
        reason: format!("by {}{}", drain.initiator, reason.unwrap_or_default()),
        ..Mark::default()
    })
}

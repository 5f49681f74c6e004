//! The table of checks. Each check is a function of the gathered facts.

mod configuration;
mod connection;
mod engine;
mod exposure;
mod fleet;
mod gateway;
mod metrics;
mod optional_features;
mod reachability;
#[cfg(test)]
mod tests;

use super::facts::{BackendFacts, DoctorFacts};
use super::finding::{Finding, Remark};

/// One check.
pub struct DoctorCheck {
    /// The name in reports.
    pub name: &'static str,
    scope: CheckScope,
}

enum CheckScope {
    /// For each backend that responds and is no listener of a gateway.
    ReachedBackends(fn(&BackendFacts, &DoctorFacts) -> Vec<Remark>),
    /// For each address, including addresses that do not respond.
    Any(fn(&BackendFacts, &DoctorFacts) -> Vec<Remark>),
    /// Once, for all facts.
    All(fn(&DoctorFacts) -> Vec<Remark>),
}

/// All checks, in the order of reports.
pub const CHECKS: [DoctorCheck; 28] = [
    DoctorCheck { name: "reachable", scope: CheckScope::Any(reachability::reachable) },
    DoctorCheck { name: "health", scope: CheckScope::ReachedBackends(reachability::health) },
    DoctorCheck { name: "server", scope: CheckScope::Any(reachability::server) },
    DoctorCheck { name: "version", scope: CheckScope::ReachedBackends(reachability::version) },
    DoctorCheck { name: "key", scope: CheckScope::Any(reachability::key) },
    DoctorCheck { name: "models", scope: CheckScope::ReachedBackends(reachability::models) },
    DoctorCheck { name: "metrics", scope: CheckScope::ReachedBackends(metrics::metrics) },
    DoctorCheck {
        name: "engine_metrics",
        scope: CheckScope::ReachedBackends(metrics::engine_metrics),
    },
    DoctorCheck { name: "scrape_time", scope: CheckScope::ReachedBackends(metrics::scrape_time) },
    DoctorCheck { name: "sleep", scope: CheckScope::ReachedBackends(engine::sleep) },
    DoctorCheck {
        name: "prefix_caching",
        scope: CheckScope::ReachedBackends(engine::prefix_caching),
    },
    DoctorCheck { name: "queue_limit", scope: CheckScope::ReachedBackends(engine::queue_limit) },
    DoctorCheck { name: "exposed", scope: CheckScope::ReachedBackends(exposure::exposed) },
    DoctorCheck {
        name: "unauthenticated",
        scope: CheckScope::ReachedBackends(exposure::unauthenticated),
    },
    DoctorCheck { name: "clock", scope: CheckScope::ReachedBackends(connection::clock) },
    DoctorCheck { name: "keep_alive", scope: CheckScope::ReachedBackends(connection::keep_alive) },
    DoctorCheck {
        name: "intermediary",
        scope: CheckScope::ReachedBackends(connection::intermediary),
    },
    DoctorCheck { name: "stream", scope: CheckScope::ReachedBackends(connection::stream) },
    DoctorCheck {
        name: "request_id",
        scope: CheckScope::ReachedBackends(optional_features::request_id),
    },
    DoctorCheck {
        name: "cached_tokens",
        scope: CheckScope::ReachedBackends(optional_features::cached_tokens),
    },
    DoctorCheck {
        name: "engine_times",
        scope: CheckScope::ReachedBackends(optional_features::engine_times),
    },
    DoctorCheck {
        name: "forced_usage",
        scope: CheckScope::ReachedBackends(optional_features::forced_usage),
    },
    DoctorCheck { name: "not_probed", scope: CheckScope::All(optional_features::not_probed) },
    DoctorCheck { name: "fleet", scope: CheckScope::All(fleet::fleet) },
    DoctorCheck { name: "named_models", scope: CheckScope::All(configuration::named_models) },
    DoctorCheck { name: "open_ports", scope: CheckScope::All(configuration::open_ports) },
    DoctorCheck { name: "gateway", scope: CheckScope::All(gateway::gateway) },
    DoctorCheck { name: "traces", scope: CheckScope::All(gateway::traces) },
];

/// Runs all checks. Findings are sorted by severity, the highest first. Equal findings about
/// several backends are merged into one.
pub fn examine(facts: &DoctorFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for check in &CHECKS {
        for (backend, remark) in check.remarks(facts) {
            let same = findings.iter_mut().find(|finding| finding.matches(check.name, &remark));
            match (same, backend) {
                (Some(finding), Some(id)) => finding.backends.push(id),
                (Some(_), None) => {}
                (None, backend) => findings.push(Finding::new(check.name, remark, backend)),
            }
        }
    }
    // The sort is stable: findings of equal severity stay in the order of the table.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

impl DoctorCheck {
    /// Runs the check. Each remark has the id of its backend, if it is about one.
    fn remarks(&self, facts: &DoctorFacts) -> Vec<(Option<String>, Remark)> {
        let for_backends = |check: fn(&BackendFacts, &DoctorFacts) -> Vec<Remark>,
                            with_unreached: bool| {
            let backends = facts.backends.iter();
            let backends = backends.filter(move |backend| with_unreached || backend.is_backend());
            let remarks = backends.flat_map(|backend| {
                check(backend, facts).into_iter().map(|remark| (Some(backend.id.clone()), remark))
            });
            remarks.collect()
        };
        match self.scope {
            CheckScope::ReachedBackends(check) => for_backends(check, false),
            CheckScope::Any(check) => for_backends(check, true),
            CheckScope::All(check) => {
                check(facts).into_iter().map(|remark| (None, remark)).collect()
            }
        }
    }
}

impl Finding {
    fn new(check: &'static str, remark: Remark, backend: Option<String>) -> Self {
        let Remark { severity, observation: seen, reason: why, remedy: change } = remark;
        Self {
            check,
            severity,
            backends: backend.into_iter().collect(),
            observation: seen,
            reason: why,
            remedy: change,
        }
    }

    fn matches(&self, check: &str, remark: &Remark) -> bool {
        let Remark { severity, observation: seen, reason: why, remedy: change } = remark;
        self.check == check
            && (self.severity, &self.observation, &self.reason, &self.remedy)
                == (*severity, seen, why, change)
    }
}

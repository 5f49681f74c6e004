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

type BackendCheck = fn(&BackendFacts, &DoctorFacts) -> Vec<Remark>;

enum CheckScope {
    /// For each backend that responds and is no listener of a gateway.
    ReachedBackends(BackendCheck),
    /// For each address, including addresses that do not respond.
    Any(BackendCheck),
    /// Once, for all facts.
    All(fn(&DoctorFacts) -> Vec<Remark>),
}

const fn reached(name: &'static str, check: BackendCheck) -> DoctorCheck {
    DoctorCheck { name, scope: CheckScope::ReachedBackends(check) }
}

const fn any(name: &'static str, check: BackendCheck) -> DoctorCheck {
    DoctorCheck { name, scope: CheckScope::Any(check) }
}

const fn all(name: &'static str, check: fn(&DoctorFacts) -> Vec<Remark>) -> DoctorCheck {
    DoctorCheck { name, scope: CheckScope::All(check) }
}

/// All checks, in the order of reports.
pub const CHECKS: [DoctorCheck; 28] = [
    any("reachable", reachability::reachable),
    reached("health", reachability::health),
    any("server", reachability::server),
    reached("version", reachability::version),
    any("key", reachability::key),
    reached("models", reachability::models),
    reached("metrics", metrics::metrics),
    reached("engine_metrics", metrics::engine_metrics),
    reached("scrape_time", metrics::scrape_time),
    reached("sleep", engine::sleep),
    reached("prefix_caching", engine::prefix_caching),
    reached("queue_limit", engine::queue_limit),
    reached("exposed", exposure::exposed),
    reached("unauthenticated", exposure::unauthenticated),
    reached("clock", connection::clock),
    reached("keep_alive", connection::keep_alive),
    reached("intermediary", connection::intermediary),
    reached("stream", connection::stream),
    reached("request_id", optional_features::request_id),
    reached("cached_tokens", optional_features::cached_tokens),
    reached("engine_times", optional_features::engine_times),
    reached("forced_usage", optional_features::forced_usage),
    all("not_probed", optional_features::not_probed),
    all("fleet", fleet::fleet),
    all("named_models", configuration::named_models),
    all("open_ports", configuration::open_ports),
    all("gateway", gateway::gateway),
    all("traces", gateway::traces),
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
        let for_backends = |check: BackendCheck, with_unreached: bool| {
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

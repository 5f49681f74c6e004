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
use CheckScope::{AllBackends, Once, ReachedBackends, Several};

type BackendCheck = fn(&BackendFacts, &DoctorFacts) -> Option<Remark>;

/// Whether a check runs for each backend or once, and under which condition.
pub enum CheckScope {
    /// The check runs for each backend that responds and is not itself a gateway.
    ReachedBackends(BackendCheck),
    /// The check runs for each configured backend, even if the backend does not respond or is itself a
    /// gateway.
    AllBackends(BackendCheck),
    /// The check runs as with `ReachedBackends`, and can have several remarks about one backend.
    Several(fn(&BackendFacts, &DoctorFacts) -> Vec<Remark>),
    /// The check runs once, for all facts. The first function returns whether the facts that the check needs
    /// were gathered. The second function is the check.
    Once(fn(&DoctorFacts) -> bool, fn(&DoctorFacts) -> Vec<Remark>),
}

/// Whether at least one backend responds and is not itself a gateway.
fn has_reached(facts: &DoctorFacts) -> bool {
    facts.backends.iter().any(BackendFacts::is_backend)
}

/// All checks, each with its name, in the order of reports.
pub const CHECKS: [(&str, CheckScope); 30] = [
    ("reachable", AllBackends(reachability::reachable)),
    ("health", ReachedBackends(reachability::health)),
    ("server", AllBackends(reachability::server)),
    ("version", ReachedBackends(reachability::version)),
    ("key", AllBackends(reachability::key)),
    ("models", ReachedBackends(reachability::models)),
    ("metrics", ReachedBackends(metrics::metrics)),
    ("engine_metrics", Several(metrics::engine_metrics)),
    ("scrape_time", ReachedBackends(metrics::scrape_time)),
    ("sleep", ReachedBackends(engine::sleep)),
    ("prefix_caching", ReachedBackends(engine::prefix_caching)),
    ("queue_limit", ReachedBackends(engine::queue_limit)),
    ("exposed", Several(exposure::exposed)),
    (
        "unauthenticated",
        ReachedBackends(exposure::unauthenticated),
    ),
    ("clock", ReachedBackends(connection::clock)),
    ("keep_alive", ReachedBackends(connection::keep_alive)),
    ("intermediary", ReachedBackends(connection::intermediary)),
    ("stream", Several(connection::stream)),
    ("request_id", ReachedBackends(optional_features::request_id)),
    (
        "cached_tokens",
        ReachedBackends(optional_features::cached_tokens),
    ),
    (
        "engine_times",
        ReachedBackends(optional_features::engine_times),
    ),
    (
        "forced_usage",
        ReachedBackends(optional_features::forced_usage),
    ),
    ("kv_events", ReachedBackends(optional_features::kv_events)),
    (
        "not_probed",
        Once(has_reached, optional_features::not_probed),
    ),
    (
        "fleet",
        Once(
            |facts| facts.backends.is_empty() || has_reached(facts),
            fleet::fleet,
        ),
    ),
    (
        "named_models",
        Once(has_reached, configuration::named_models),
    ),
    (
        "open_ports",
        Once(|facts| facts.is_configured, configuration::open_ports),
    ),
    (
        "start",
        Once(
            |facts| facts.is_configured && facts.gateway.is_none(),
            configuration::start,
        ),
    ),
    (
        "gateway",
        Once(|facts| facts.gateway.is_some(), gateway::gateway),
    ),
    (
        "traces",
        Once(|facts| facts.collector.is_some(), gateway::traces),
    ),
];

/// Number of checks that [`examine`] can run: the facts that they need were gathered.
pub fn made(facts: &DoctorFacts) -> usize {
    let is_made = |(_, scope): &&(&str, CheckScope)| match scope {
        ReachedBackends(_) | Several(_) => has_reached(facts),
        AllBackends(_) => !facts.backends.is_empty(),
        Once(needs, _) => needs(facts),
    };
    CHECKS.iter().filter(is_made).count()
}

/// Runs all checks. The findings are sorted by severity, the highest first. Findings about several backends are
/// merged if they are equal.
pub fn examine(facts: &DoctorFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (check, scope) in CHECKS {
        for (backend, remark) in scope.remarks(facts) {
            let is_equal =
                |finding: &&mut Finding| finding.check == check && finding.remark == remark;
            if let Some(finding) = findings.iter_mut().find(is_equal) {
                finding.backends.extend(backend);
            } else {
                let backends = backend.into_iter().collect();
                findings.push(Finding {
                    check,
                    backends,
                    remark,
                });
            }
        }
    }
    // The sort is stable: findings of equal severity stay in the order of [`CHECKS`].
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.remark.severity));
    findings
}

impl CheckScope {
    /// Runs the check. Each remark comes with the name of its backend. `None`: the remark is about the whole
    /// deployment.
    fn remarks(self, facts: &DoctorFacts) -> Vec<(Option<String>, Remark)> {
        let of_backend = |backend: &BackendFacts| match self {
            AllBackends(check) => check(backend, facts).into_iter().collect(),
            ReachedBackends(check) if backend.is_backend() => {
                check(backend, facts).into_iter().collect()
            }
            Several(check) if backend.is_backend() => check(backend, facts),
            _ => Vec::new(),
        };
        if let Once(needs, check) = self {
            let remarks = if needs(facts) {
                check(facts)
            } else {
                Vec::new()
            };
            return remarks.into_iter().map(|remark| (None, remark)).collect();
        }
        let mut remarks = Vec::new();
        for backend in &facts.backends {
            let of_backend = of_backend(backend).into_iter();
            remarks.extend(of_backend.map(|remark| (Some(backend.id.clone()), remark)));
        }
        remarks
    }
}

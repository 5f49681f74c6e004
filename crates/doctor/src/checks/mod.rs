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

/// One check: a row of [`CHECKS`].
pub struct DoctorCheck {
    /// The name of the check in reports.
    pub name: &'static str,
    /// Whether the check runs for each backend or once, and under which condition.
    scope: CheckScope,
}

type BackendCheck = fn(&BackendFacts, &DoctorFacts) -> Vec<Remark>;

enum CheckScope {
    /// The check runs for each backend that responds and is no listener of a gateway.
    ReachedBackends(BackendCheck),
    /// The check runs for each configured backend, even if it does not respond or is a listener of
    /// a gateway.
    AllBackends(BackendCheck),
    /// The check runs once, for all facts, if `needs` returns true, that is, if the facts that it needs were
    /// gathered.
    Once { needs: fn(&DoctorFacts) -> bool, check: fn(&DoctorFacts) -> Vec<Remark> },
}

const fn for_reached_backends(name: &'static str, check: BackendCheck) -> DoctorCheck {
    DoctorCheck { name, scope: CheckScope::ReachedBackends(check) }
}

const fn for_all_backends(name: &'static str, check: BackendCheck) -> DoctorCheck {
    DoctorCheck { name, scope: CheckScope::AllBackends(check) }
}

const fn once(
    name: &'static str,
    needs: fn(&DoctorFacts) -> bool,
    check: fn(&DoctorFacts) -> Vec<Remark>,
) -> DoctorCheck {
    DoctorCheck { name, scope: CheckScope::Once { needs, check } }
}

/// Whether at least one backend responds and is no listener of a gateway.
fn has_reached(facts: &DoctorFacts) -> bool {
    facts.backends.iter().any(BackendFacts::is_backend)
}

/// All checks, in the order of reports.
pub const CHECKS: [DoctorCheck; 30] = [
    for_all_backends("reachable", reachability::reachable),
    for_reached_backends("health", reachability::health),
    for_all_backends("server", reachability::server),
    for_reached_backends("version", reachability::version),
    for_all_backends("key", reachability::key),
    for_reached_backends("models", reachability::models),
    for_reached_backends("metrics", metrics::metrics),
    for_reached_backends("engine_metrics", metrics::engine_metrics),
    for_reached_backends("scrape_time", metrics::scrape_time),
    for_reached_backends("sleep", engine::sleep),
    for_reached_backends("prefix_caching", engine::prefix_caching),
    for_reached_backends("queue_limit", engine::queue_limit),
    for_reached_backends("exposed", exposure::exposed),
    for_reached_backends("unauthenticated", exposure::unauthenticated),
    for_reached_backends("clock", connection::clock),
    for_reached_backends("keep_alive", connection::keep_alive),
    for_reached_backends("intermediary", connection::intermediary),
    for_reached_backends("stream", connection::stream),
    for_reached_backends("request_id", optional_features::request_id),
    for_reached_backends("cached_tokens", optional_features::cached_tokens),
    for_reached_backends("engine_times", optional_features::engine_times),
    for_reached_backends("forced_usage", optional_features::forced_usage),
    for_reached_backends("kv_events", optional_features::kv_events),
    once("not_probed", has_reached, optional_features::not_probed),
    once("fleet", |facts| facts.backends.is_empty() || has_reached(facts), fleet::fleet),
    once("named_models", has_reached, configuration::named_models),
    once("open_ports", |facts| facts.is_configured, configuration::open_ports),
    once("start", |facts| facts.is_configured && facts.gateway.is_none(), configuration::start),
    once("gateway", |facts| facts.gateway.is_some(), gateway::gateway),
    once("traces", |facts| facts.collector.is_some(), gateway::traces),
];

/// Number of checks that [`examine`] can run, because the facts that they need were gathered.
pub fn made(facts: &DoctorFacts) -> usize {
    let is_made = |check: &&DoctorCheck| match check.scope {
        CheckScope::ReachedBackends(_) => has_reached(facts),
        CheckScope::AllBackends(_) => !facts.backends.is_empty(),
        CheckScope::Once { needs, .. } => needs(facts),
    };
    CHECKS.iter().filter(is_made).count()
}

/// Runs all checks. Findings are sorted by severity, the highest first. Equal findings about
/// several backends are merged into one finding.
pub fn examine(facts: &DoctorFacts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for check in &CHECKS {
        for (backend, remark) in check.remarks(facts) {
            let is_equal =
                |finding: &&mut Finding| finding.check == check.name && finding.remark == remark;
            if let Some(finding) = findings.iter_mut().find(is_equal) {
                finding.backends.extend(backend);
            } else {
                let backends = backend.into_iter().collect();
                findings.push(Finding { check: check.name, backends, remark });
            }
        }
    }
    // The sort is stable: findings of equal severity stay in the order of [`CHECKS`].
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.remark.severity));
    findings
}

impl DoctorCheck {
    /// Runs the check. Each remark is returned with the name of the backend that it is about.
    /// `None`: the remark is about the deployment as a whole.
    fn remarks(&self, facts: &DoctorFacts) -> Vec<(Option<String>, Remark)> {
        let run_for_backends = |check: BackendCheck, with_unreached: bool| {
            let backends = facts.backends.iter();
            let backends = backends.filter(move |backend| with_unreached || backend.is_backend());
            let remarks = backends.flat_map(|backend| {
                check(backend, facts).into_iter().map(|remark| (Some(backend.id.clone()), remark))
            });
            remarks.collect()
        };
        match self.scope {
            CheckScope::ReachedBackends(check) => run_for_backends(check, false),
            CheckScope::AllBackends(check) => run_for_backends(check, true),
            CheckScope::Once { needs, .. } if !needs(facts) => Vec::new(),
            CheckScope::Once { check, .. } => {
                check(facts).into_iter().map(|remark| (None, remark)).collect()
            }
        }
    }
}

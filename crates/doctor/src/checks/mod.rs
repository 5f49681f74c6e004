//! The checks: one table, one row each. They are functions of what was gathered.

mod configuration;
mod engine;
mod exposure;
mod fleet;
mod gateway;
mod metrics;
mod reach;
#[cfg(test)]
mod tests;
mod unlock;
mod wire;

use super::facts::{Facts, Replica};
use super::finding::{Finding, Remark};

/// One thing that is looked at.
pub struct Check {
    /// What it is called in reports.
    pub name: &'static str,
    look: Look,
}

enum Look {
    /// At each replica that answers, and is none of a gateway's own ports.
    Each(fn(&Replica, &Facts) -> Vec<Remark>),
    /// At each address, also one that does not answer.
    Any(fn(&Replica, &Facts) -> Vec<Remark>),
    /// At everything.
    All(fn(&Facts) -> Vec<Remark>),
}

/// All of them, in the order in which they are told.
pub const CHECKS: [Check; 28] = [
    Check { name: "reachable", look: Look::Any(reach::reachable) },
    Check { name: "health", look: Look::Each(reach::health) },
    Check { name: "server", look: Look::Any(reach::server) },
    Check { name: "version", look: Look::Each(reach::version) },
    Check { name: "key", look: Look::Any(reach::key) },
    Check { name: "models", look: Look::Each(reach::models) },
    Check { name: "metrics", look: Look::Each(metrics::metrics) },
    Check { name: "signals", look: Look::Each(metrics::signals) },
    Check { name: "scrape_time", look: Look::Each(metrics::scrape_time) },
    Check { name: "sleep", look: Look::Each(engine::sleep) },
    Check { name: "prefix_caching", look: Look::Each(engine::prefix_caching) },
    Check { name: "queue_limit", look: Look::Each(engine::queue_limit) },
    Check { name: "exposed", look: Look::Each(exposure::exposed) },
    Check { name: "unguarded", look: Look::Each(exposure::unguarded) },
    Check { name: "clock", look: Look::Each(wire::clock) },
    Check { name: "keep_alive", look: Look::Each(wire::keep_alive) },
    Check { name: "in_between", look: Look::Each(wire::in_between) },
    Check { name: "stream", look: Look::Each(wire::stream) },
    Check { name: "request_id", look: Look::Each(unlock::request_id) },
    Check { name: "cached_tokens", look: Look::Each(unlock::cached_tokens) },
    Check { name: "engine_times", look: Look::Each(unlock::engine_times) },
    Check { name: "forced_usage", look: Look::Each(unlock::forced_usage) },
    Check { name: "not_probed", look: Look::All(unlock::not_probed) },
    Check { name: "fleet", look: Look::All(fleet::fleet) },
    Check { name: "named_models", look: Look::All(configuration::named_models) },
    Check { name: "open_ports", look: Look::All(configuration::open_ports) },
    Check { name: "gateway", look: Look::All(gateway::gateway) },
    Check { name: "traces", look: Look::All(gateway::traces) },
];

/// Everything that there is to say, the worst first. What is the same of several replicas is said
/// once.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for check in &CHECKS {
        for (replica, remark) in check.remarks(facts) {
            let same = findings.iter_mut().find(|finding| finding.is_of(check.name, &remark));
            match (same, replica) {
                (Some(finding), Some(id)) => finding.replicas.push(id),
                (Some(_), None) => {}
                (None, replica) => findings.push(Finding::of(check.name, remark, replica)),
            }
        }
    }
    // Stable: equals stay in the order of the table.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

impl Check {
    /// What it says, and of which replica.
    fn remarks(&self, facts: &Facts) -> Vec<(Option<String>, Remark)> {
        let of_replicas = |look: fn(&Replica, &Facts) -> Vec<Remark>, also_others: bool| {
            let asked = facts.replicas.iter();
            let asked = asked.filter(move |replica| also_others || replica.is_replica());
            let remarks = asked.flat_map(|replica| {
                look(replica, facts).into_iter().map(|remark| (Some(replica.id.clone()), remark))
            });
            remarks.collect()
        };
        match self.look {
            Look::Each(look) => of_replicas(look, false),
            Look::Any(look) => of_replicas(look, true),
            Look::All(look) => look(facts).into_iter().map(|remark| (None, remark)).collect(),
        }
    }
}

impl Finding {
    fn of(check: &'static str, remark: Remark, replica: Option<String>) -> Self {
        let Remark { severity, seen, why, change } = remark;
        Self { check, severity, replicas: replica.into_iter().collect(), seen, why, change }
    }

    fn is_of(&self, check: &str, remark: &Remark) -> bool {
        let Remark { severity, seen, why, change } = remark;
        self.check == check
            && (self.severity, &self.seen, &self.why, &self.change)
                == (*severity, seen, why, change)
    }
}

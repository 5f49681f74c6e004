//! The score of a router in one run.

use crate::results::{LatencyObjectives, RunResults, ServedRequest, jain_index};
use crate::trace::TraceRequest;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use tokenweir_protocol::histogram::sample_quantile;

/// The score of a router in one run. Shares are from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct RouterScore {
    /// Share of the requests that met the objectives.
    pub goodput: f64,
    /// Share of the requests with a TTFT of at most three times the objective.
    pub within_three: f64,
    /// 99th percentile of the time to first token of the served requests in seconds.
    pub ttft_p99: f64,
    /// Share of the requests that were refused.
    pub refused: f64,
    /// Share of the computed tokens that belong to requests whose TTFT exceeded `PATIENCE`.
    pub wasted: f64,
    /// How often the caches are filled: tokens that the engines computed, relative to the tokens that all KV
    /// caches hold.
    pub turnovers: f64,
    /// Share of prompt tokens from a prefix cache.
    pub cached: f64,
    /// Jain's index of fairness over the goodputs of the tenants that sent at least `MIN_TENANT_REQUESTS`
    /// requests. 1: all goodputs are equal.
    pub fairness: f64,
}

/// Wait in seconds after which a real client has probably disconnected. The simulated clients keep waiting.
const PATIENCE: f64 = 30.0;
/// Minimum number of requests that a tenant must have sent, so that its goodput counts for the fairness.
const MIN_TENANT_REQUESTS: usize = 20;

impl RouterScore {
    /// The score over the requests that arrived in a period of time, in seconds. `capacity`: the number of
    /// tokens that all KV caches hold.
    pub(super) fn new(
        results: &RunResults,
        requests: &[TraceRequest],
        objectives: &LatencyObjectives,
        window: Range<f64>,
        capacity: f64,
    ) -> Self {
        let is_counted = |number: &usize| window.contains(&results.arrivals[*number]);
        let count = (0..requests.len()).filter(is_counted).count().max(1) as f64;
        let served: Vec<&ServedRequest> = results
            .served
            .iter()
            .filter(|served| is_counted(&served.request))
            .collect();
        let share = |is_part: &dyn Fn(&ServedRequest) -> bool| {
            served.iter().filter(|served| is_part(served)).count() as f64 / count
        };
        let sum = |read: &dyn Fn(&ServedRequest) -> f64| {
            served.iter().map(|served| read(served)).sum::<f64>()
        };
        let computed =
            |served: &ServedRequest| f64::from(served.prompt - served.cached + served.output);
        let wasted = |served: &ServedRequest| {
            if served.ttft > PATIENCE {
                computed(served)
            } else {
                0.0
            }
        };
        let mut ttft: Vec<f64> = served.iter().map(|served| served.ttft).collect();
        let tenants = count_by_tenant(requests, &served, objectives, is_counted);
        Self {
            goodput: share(&|served| objectives.is_met_by(served)),
            within_three: share(&|served| served.ttft <= 3.0 * objectives.ttft),
            ttft_p99: sample_quantile(&mut ttft, 0.99).unwrap_or(0.0),
            refused: 1.0 - served.len() as f64 / count,
            wasted: sum(&wasted) / sum(&computed).max(1.0),
            turnovers: sum(&computed) / capacity,
            cached: sum(&|served| served.cached.into())
                / sum(&|served| served.prompt.into()).max(1.0),
            fairness: fairness(&tenants),
        }
    }
}

#[derive(Debug, Default)]
struct TenantRequests {
    sent: usize,
    good: usize,
}

fn count_by_tenant(
    requests: &[TraceRequest],
    served: &[&ServedRequest],
    objectives: &LatencyObjectives,
    is_counted: impl Fn(&usize) -> bool,
) -> BTreeMap<u64, TenantRequests> {
    let good = served.iter().filter(|served| objectives.is_met_by(served));
    let good: BTreeSet<usize> = good.map(|served| served.request).collect();
    let mut tenants: BTreeMap<u64, TenantRequests> = BTreeMap::new();
    for number in (0..requests.len()).filter(is_counted) {
        let tenant = tenants.entry(requests[number].tenant).or_default();
        tenant.sent += 1;
        tenant.good += usize::from(good.contains(&number));
    }
    tenants
}

/// Jain's index over the goodputs of the tenants that sent enough requests.
fn fairness(tenants: &BTreeMap<u64, TenantRequests>) -> f64 {
    let counted = tenants
        .values()
        .filter(|tenant| tenant.sent >= MIN_TENANT_REQUESTS);
    jain_index(counted.map(|tenant| tenant.good as f64 / tenant.sent as f64))
}

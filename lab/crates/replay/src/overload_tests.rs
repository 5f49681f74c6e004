//! Tests of fleets whose caches are small, and empty at the start. The first requests overload the engines.
//! Once each prefix is in a cache, the load is low. A policy must not prolong the overload.

use super::cache_view::CacheView;
use super::engines::engine_groups::EngineGroup;
use super::results::LatencyObjectives;
use super::routers::RouterKind;
use super::simulation::{SimulatedAdmission, Simulation, SimulationSetup};
use super::trace::{self, TraceRequest};
use std::fmt::Write;
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_routing::PolicyKind;
use tokenweir_routing::saturation::SaturationThresholds;

/// Number of different system prompts. The eight caches of the fleet together hold 80 of them.
const SYSTEM_PROMPTS: u64 = 64;

/// Builds 40 requests per second. Each has one of the system prompts of 3,072 tokens and a short question.
fn requests() -> Vec<TraceRequest> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut lines = String::new();
    let mut now = 0.0;
    for number in 0..1_500_u64 {
        now -= 25.0 * (1.0 - random.f64()).ln();
        let first = 6 * random.u64(..SYSTEM_PROMPTS);
        let system: Vec<String> = (first..first + 6).map(|block| block.to_string()).collect();
        let system = system.join(",");
        let question = 6 * SYSTEM_PROMPTS + number;
        let input = 3_072 + random.u32(64..256);
        let output = random.u32(16..64);
        writeln!(
            lines,
            "{{\"timestamp\":{now},\"input_length\":{input},\"output_length\":{output},\
             \"hash_ids\":[{system},{question}]}}"
        )
        .unwrap();
    }
    trace::read(lines.as_bytes()).unwrap()
}

/// Returns the share of the requests whose first token came within a second.
fn goodput(group: &str, gateways: usize, view: CacheView) -> f64 {
    let group: EngineGroup = group.parse().unwrap();
    let mut setup = SimulationSetup::new(vec![group.spec; group.count], clock::now());
    (setup.gateways, setup.cache_view) = (gateways, view);
    setup.admission = Some(SimulatedAdmission {
        thresholds: SaturationThresholds::default(),
        max_wait: Duration::from_secs(30),
        objective: None,
        has_tenants: true,
        has_sessions: false,
    });
    let kind = RouterKind::Shipped(PolicyKind::KvAware);
    let results = Simulation::new(&setup, &requests(), kind, 1).run(|| ());
    results.figures(&LatencyObjectives::new(1.0, 0.1)).goodput
}

#[test]
fn prefixes_stay_together_in_overload() {
    let in_time = goodput("8:kv=32768,prefill=7000,seqs=64", 1, CacheView::Approximate);
    assert!(in_time > 0.85, "{in_time}");
}

#[test]
fn one_backend_computes_each_new_prefix() {
    let fleet = "8:kv=32768,prefill=10000,seqs=64";
    let events = goodput(fleet, 4, CacheView::Events);
    let exchange = goodput(fleet, 4, CacheView::Exchange);
    assert!(events < 0.5 && exchange > 0.9, "{events} {exchange}");
}

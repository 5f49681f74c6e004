//! Tests of what `kv_aware` learns while requests wait for something other than prefill. In one test, a burst
//! has more requests than the engines have sequence slots. In the other, an engine computes nothing for some
//! seconds. Afterwards, `kv_aware` must share the next requests as if the gateway had seen no load before.

use super::engines::engine_groups::EngineSpec;
use super::results::RunResults;
use super::routers::RouterKind;
use super::simulation::{Simulation, SimulationSetup};
use super::tests::short_request;
use super::trace::TraceRequest;
use std::ops::Range;
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_protocol::histogram::sample_quantile;
use tokenweir_routing::PolicyKind;

/// A closed loop of clients. Each client sends `turns` requests, one after the other.
struct Load {
    from_seconds: u64,
    clients: usize,
    turns: usize,
}

/// Twelve concurrent streams on two engines, which together have sixteen sequence slots.
const MODERATE: Load = Load {
    from_seconds: 60,
    clients: 12,
    turns: 16,
};

fn requests(loads: &[Load]) -> Vec<TraceRequest> {
    let mut requests = Vec::new();
    for load in loads {
        for _ in 0..load.clients {
            for turn in 0..load.turns {
                let at = Duration::from_secs(if turn == 0 { load.from_seconds } else { 0 });
                let after = (turn > 0).then(|| requests.len() - 1);
                requests.push(TraceRequest {
                    after,
                    ..short_request(at, 60)
                });
            }
        }
    }
    requests
}

/// Simulates `loads`, followed by the load [`MODERATE`]. Returns the share of the requests of [`MODERATE`]
/// that the first backend gets, and the 90th percentile of their TTFT in seconds. `frozen`: seconds during
/// which the first engine computes nothing.
fn moderate_load_after(mut loads: Vec<Load>, frozen: Option<Range<u64>>) -> (f64, f64) {
    let spec = EngineSpec {
        max_num_seqs: 8,
        ..EngineSpec::DEFAULT
    };
    let seconds = Duration::from_secs;
    let frozen = frozen.map(|period| (0, seconds(period.start)..seconds(period.end)));
    let setup = SimulationSetup {
        frozen,
        ..SimulationSetup::new(vec![spec; 2], clock::now())
    };
    loads.push(MODERATE);
    let requests = requests(&loads);
    let measured = requests.len() - MODERATE.clients * MODERATE.turns;
    let kind = RouterKind::Shipped(PolicyKind::KvAware);
    let results: RunResults = Simulation::new(&setup, &requests, kind, 1).run(|| ());
    let from = MODERATE.from_seconds as f64;
    let placements = results.placements.iter().filter(|(at, _)| *at >= from);
    let count = placements.clone().count() as f64;
    let first = placements.filter(|(_, backend)| *backend == 0).count() as f64;
    let measured = results
        .served
        .iter()
        .filter(|served| served.request >= measured);
    let mut ttfts: Vec<f64> = measured.map(|served| served.ttft).collect();
    (first / count, sample_quantile(&mut ttfts, 0.9).unwrap())
}

/// Asserts that, after `loads`, the first backend gets 40 to 60 % of the requests of [`MODERATE`], and that
/// their p90 of the TTFT is at most 1.2 times that of a gateway without earlier load.
fn assert_shared(name: &str, loads: Vec<Load>, frozen: Option<Range<u64>>) {
    let (_, fresh) = moderate_load_after(Vec::new(), None);
    let (share, ttft) = moderate_load_after(loads, frozen);
    assert!(
        (0.4..=0.6).contains(&share),
        "{name}: {share}, {ttft} s, fresh {fresh} s"
    );
    assert!(
        ttft <= 1.2 * fresh,
        "{name}: {share}, {ttft} s, fresh {fresh} s"
    );
}

/// A burst of requests that ends about 10 s before the load [`MODERATE`] begins.
const BURST: Load = Load {
    from_seconds: 45,
    clients: 40,
    turns: 3,
};

#[test]
fn ten_seconds_after_a_burst_load_is_even() {
    assert_shared("burst", vec![BURST], None);
    let steady = || Load {
        from_seconds: 0,
        clients: 4,
        turns: 20,
    };
    assert_shared("burst after steady load", vec![steady(), BURST], None);
    let earlier = Load {
        from_seconds: 20,
        ..BURST
    };
    assert_shared("two bursts", vec![steady(), earlier, BURST], None);
    let long = Load {
        from_seconds: 0,
        clients: 40,
        turns: 22,
    };
    assert_shared("overload", vec![long], None);
}

#[test]
fn ten_seconds_after_a_pause_load_is_even() {
    let steady = |clients| {
        vec![Load {
            from_seconds: 0,
            clients,
            turns: 50,
        }]
    };
    assert_shared("pause at low load", steady(2), Some(20..30));
    assert_shared("pause at moderate load", steady(12), Some(20..30));
    assert_shared("short pause", steady(12), Some(20..22));
    assert_shared("slow first output", steady(4), Some(0..8));
}

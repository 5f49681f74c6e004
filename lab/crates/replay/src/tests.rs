//! Tests of whole simulations with known results.

use super::cache_view::{CacheView, ExchangeSettings};
use super::engines::engine_groups::{EngineGroup, default_engine_spec};
use super::engines::engine_presets::EnginePreset;
use super::experiment::Experiment;
use super::results::{LatencyObjectives, RunMetrics, RunResults};
use super::routers::RouterKind;
use super::simulation::{SimulatedAdmission, Simulation, SimulationSetup};
use super::trace::{self, TraceRequest};
use super::workload::{self, TrafficShape};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_routing::saturation::SaturationThresholds;
use tokenweir_routing::{PolicyKind, PromptFingerprint};

const TRACE: &str = "../../traces/conversation.jsonl";

/// Reads the requests of the trace in the repository.
fn jobs() -> Vec<TraceRequest> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(TRACE);
    trace::read(&fs::read(path).unwrap()[..]).unwrap()
}

fn setup(group: &str, speed: f64) -> SimulationSetup {
    let group: EngineGroup = group.parse().unwrap();
    SimulationSetup {
        speed,
        spread: Duration::from_secs(3),
        ..SimulationSetup::new(vec![group.spec; group.count], clock::now())
    }
}

const KV_AWARE: RouterKind = RouterKind::Shipped(PolicyKind::KvAware);
const ROUND_ROBIN: RouterKind = RouterKind::Shipped(PolicyKind::RoundRobin);
const OBJECTIVES: LatencyObjectives = LatencyObjectives::new(2.0, 0.1);

fn figures(
    setup: &SimulationSetup,
    jobs: &[TraceRequest],
    kind: RouterKind,
    seed: u64,
) -> RunMetrics {
    Simulation::new(setup, jobs, kind, seed)
        .run(|| ())
        .figures(&OBJECTIVES)
}

#[test]
fn equal_seeds_give_equal_results() {
    let jobs = &jobs()[..300];
    let setup = setup("4", 1.5);
    for kind in RouterKind::all() {
        let first = figures(&setup, jobs, kind, 1);
        assert_eq!(first, figures(&setup, jobs, kind, 1), "{}", kind.name());
        assert_ne!(first, figures(&setup, jobs, kind, 2), "{}", kind.name());
    }
}

#[test]
fn every_request_is_served_once_completely() {
    let jobs = jobs();
    let setup = setup("3:kv=200000", 2.0);
    for kind in RouterKind::all() {
        let score = Simulation::new(&setup, &jobs, kind, 1).run(|| ());
        let sum = |numbers: &mut dyn Iterator<Item = u32>| numbers.map(u64::from).sum::<u64>();
        assert_eq!(score.served.len(), jobs.len(), "{}", kind.name());
        assert_eq!(
            sum(&mut score.served.iter().map(|served| served.output)),
            sum(&mut jobs.iter().map(|job| job.output_tokens)),
        );
        assert!(
            score
                .served
                .iter()
                .all(|served| served.cached < served.prompt)
        );
    }
}

#[test]
fn requests_larger_than_the_cache_are_not_served() {
    let jobs = jobs();
    let small = setup("2:kv=20000", 0.2);
    let score = Simulation::new(&small, &jobs, KV_AWARE, 1).run(|| ());
    let fits =
        |job: &&TraceRequest| job.prompt_tokens + job.output_tokens <= small.specs[0].capacity();
    assert_eq!(score.served.len(), jobs.iter().filter(fits).count());
    assert!(score.served.len() < jobs.len());
}

#[test]
fn a_disconnecting_client_gets_output_until_then() {
    let mut jobs = jobs();
    for job in &mut jobs {
        job.disconnect_after_tokens = Some(1);
    }
    let score = Simulation::new(&setup("4", 1.0), &jobs, KV_AWARE, 1).run(|| ());
    assert_eq!(score.served.len(), jobs.len());
    assert!(score.served.iter().all(|served| served.output == 1));
}

#[test]
fn kv_aware_beats_round_robin_with_slow_backends() {
    let jobs = jobs();
    let equal = setup("4", 1.6);
    let mut one_slow = setup("4", 1.2);
    one_slow.specs[0].prefill_token = default_engine_spec().prefill_token * 4;
    for (fleet, setup) in [("equal", equal), ("one slow", one_slow)] {
        let [kv_aware, round_robin] =
            [KV_AWARE, ROUND_ROBIN].map(|kind| figures(&setup, &jobs, kind, 1));
        assert!(
            kv_aware.goodput > 1.2 * round_robin.goodput
                && kv_aware.cached > round_robin.cached
                && kv_aware.ttft_p99 < round_robin.ttft_p99,
            "{fleet}: {kv_aware:?} {round_robin:?}"
        );
    }
}

#[test]
fn the_calibration_finds_the_given_goodput() {
    let jobs = [jobs()[..300].to_vec()];
    let experiment = Experiment {
        setup: setup("4", 1.0),
        jobs: &jobs,
        objectives: OBJECTIVES,
        seeds: 2,
    };
    let speed = experiment.calibrate(0.5, &|| ());
    let calibrated = figures(
        &SimulationSetup {
            speed,
            ..experiment.setup.clone()
        },
        &jobs[0],
        ROUND_ROBIN,
        1,
    );
    assert!(
        (calibrated.goodput - 0.5).abs() < 0.02,
        "{speed} {calibrated:?}"
    );
    let outcomes = experiment.run(&[ROUND_ROBIN, KV_AWARE], &|| ());
    assert_eq!(outcomes[1].policy, "kv_aware");
    assert_eq!(outcomes[0].goodputs.len(), 2);
    assert_eq!(
        outcomes[0].goodputs[0].to_bits(),
        figures(&experiment.setup, &jobs[0], ROUND_ROBIN, 1)
            .goodput
            .to_bits()
    );
    assert_eq!(outcomes[0].sessions, None, "the trace has no closed loop");
}

#[test]
fn late_turns_find_more_cached_with_kv_aware() {
    let jobs = [workload::generate(TrafficShape::Agents, 1_000, 1)];
    let setup = setup("4", 5.0);
    let outcomes = Experiment {
        setup,
        jobs: &jobs,
        objectives: OBJECTIVES,
        seeds: 1,
    }
    .run(&[KV_AWARE, ROUND_ROBIN], &|| ());
    let [kv_aware, round_robin] = [0, 1].map(|policy| outcomes[policy].sessions.unwrap());
    assert!(
        kv_aware.late_cached > round_robin.late_cached + 0.2,
        "{kv_aware:?} {round_robin:?}"
    );
    assert!(
        kv_aware.goodput >= round_robin.goodput,
        "{kv_aware:?} {round_robin:?}"
    );
    assert!((0.0..=1.0).contains(&kv_aware.fairness), "{kv_aware:?}");
}

/// Builds a prompt of this number of bytes with these blocks of 512 bytes.
pub(super) fn prompt(bytes: u64, blocks: Box<[u64]>) -> Arc<PromptFingerprint> {
    Arc::new(PromptFingerprint {
        bytes,
        blocks,
        block_bytes: 512,
        ..PromptFingerprint::default()
    })
}

/// Builds a request with a prompt of 30 tokens that arrives at `at`.
pub(super) fn short_request(at: Duration, output_tokens: u32) -> TraceRequest {
    TraceRequest {
        at,
        prompt_tokens: 30,
        output_tokens,
        prompt: prompt(120, Box::default()),
        ..TraceRequest::default()
    }
}

/// Returns the number of requests that were sent to the second backend between two times in seconds.
fn sent_to_second(score: &RunResults, from: f64, to: f64) -> usize {
    let matches = |(at, position): &&(f64, usize)| *position == 1 && (from..to).contains(at);
    score.placements.iter().filter(matches).count()
}

/// Builds a setup with two backends. `first` and `second`: the engine of each, as a group of one backend.
fn pair(first: &str, second: &str) -> SimulationSetup {
    let specs = [first, second]
        .map(|text| text.parse::<EngineGroup>().unwrap().spec)
        .to_vec();
    SimulationSetup {
        specs,
        spread: Duration::ZERO,
        ..setup("2", 1.0)
    }
}

#[test]
fn a_frozen_engine_gets_four_requests_at_most() {
    // Two requests arrive per second. The second engine is faster, so it gets most of them. It computes
    // nothing from second 60 to second 70.
    let at = |number: u32| number * Duration::from_millis(500);
    let jobs: Vec<TraceRequest> = (0..600)
        .map(|number| short_request(at(number), 20))
        .collect();
    let frozen = Some((1, Duration::from_mins(1)..Duration::from_secs(70)));
    let setup = SimulationSetup {
        frozen,
        ..pair("1:step=60", "1:step=20")
    };
    let score = Simulation::new(&setup, &jobs, KV_AWARE, 1).run(|| ());
    assert!(
        sent_to_second(&score, 0.0, 60.0) > 60,
        "{}",
        sent_to_second(&score, 0.0, 60.0)
    );
    let during = sent_to_second(&score, 60.0, 70.0);
    // A request is overdue after a quarter of a second, and an engine at a standstill after two seconds.
    assert!(during <= 4, "{during}");
    let after = sent_to_second(&score, 70.0, 130.0);
    assert!(after > 20, "{after}");
}

/// Simulates `kv_aware` with several gateways in front of four backends, and with traffic that shares
/// prefixes. Returns the metrics of the run.
fn with_view(gateways: usize, cache_view: CacheView, exchange: ExchangeSettings) -> RunMetrics {
    let jobs = workload::generate(TrafficShape::SystemPrompts, 1_500, 1);
    let setup = SimulationSetup {
        gateways,
        cache_view,
        exchange,
        ..setup("4:kv=60000", 25.0)
    };
    figures(&setup, &jobs, KV_AWARE, 1)
}

#[test]
fn events_or_exchange_find_more_cached_tokens() {
    let cached = |gateways, view| with_view(gateways, view, ExchangeSettings::default()).cached;
    let one = cached(1, CacheView::Approximate);
    let approximate = cached(4, CacheView::Approximate);
    assert!(approximate < 0.9 * one, "{approximate} {one}");
    for view in CacheView::ALL
        .into_iter()
        .filter(|view| *view != CacheView::Approximate)
    {
        assert!(
            cached(4, view) > 0.9 * one,
            "{view:?}: {} {one}",
            cached(4, view)
        );
    }
}

#[test]
fn an_exchange_adds_the_others_load() {
    let lossy = ExchangeSettings {
        loss: 1.0,
        ..ExchangeSettings::default()
    };
    let views = [CacheView::Events, CacheView::EventsAndExchange];
    let exact_views = [CacheView::Exact, CacheView::ExactAndExchange];
    for [alone, joined] in [views, exact_views] {
        let events = with_view(4, alone, lossy);
        assert_eq!(
            with_view(4, joined, lossy),
            events,
            "{joined:?}: all messages are lost"
        );
        assert_ne!(
            with_view(4, joined, ExchangeSettings::default()),
            events,
            "{joined:?}"
        );
    }
}

#[test]
fn events_alone_show_no_texts_of_others() {
    // Each prompt is sent only twice. So if the second request reaches another gateway, that gateway has not
    // sent the prompt before.
    let request = |number: u32| {
        let mut request = short_request(number / 2 * Duration::from_secs(4), 2);
        request.at += number % 2 * Duration::from_secs(2);
        request.prompt_tokens = 8_192;
        let first = u64::from(number / 2 * 16 + 1);
        request.prompt = prompt(8_192, (first..first + 16).collect());
        request
    };
    let jobs: Vec<TraceRequest> = (0..400).map(request).collect();
    let cached = |gateways, cache_view| {
        let spread = Duration::ZERO;
        let setup = SimulationSetup {
            spread,
            gateways,
            cache_view,
            ..setup("4", 1.0)
        };
        figures(&setup, &jobs, KV_AWARE, 1).cached
    };
    let exact = cached(4, CacheView::Exact);
    let events = cached(4, CacheView::Events);
    assert!(events < 0.8 * exact, "{events} {exact}");
    let joined = cached(4, CacheView::EventsAndExchange);
    assert!(
        joined > 1.1 * events && joined > 0.85 * exact,
        "{joined} {events} {exact}"
    );
}

#[test]
fn an_exchange_without_messages_changes_nothing() {
    let exchange = ExchangeSettings::default();
    let lossy = ExchangeSettings {
        loss: 1.0,
        ..exchange
    };
    let alone = |gateways| with_view(gateways, CacheView::Approximate, exchange);
    assert_eq!(with_view(1, CacheView::Exchange, exchange), alone(1));
    assert_eq!(with_view(4, CacheView::Exchange, lossy), alone(4));
    assert_ne!(with_view(4, CacheView::Exchange, exchange), alone(4));
}

#[test]
fn longer_delays_find_fewer_cached_tokens() {
    let delayed = |millis| {
        let exchange = ExchangeSettings {
            delay: Duration::from_millis(millis),
            loss: 0.0,
        };
        with_view(4, CacheView::Exchange, exchange).cached
    };
    assert!(delayed(5) > delayed(600_000));
}

/// Admission control with the default thresholds and this greatest wait.
fn admission(max_wait: Duration) -> SimulatedAdmission {
    let thresholds = SaturationThresholds::default();
    SimulatedAdmission {
        thresholds,
        max_wait,
        objective: None,
        has_tenants: true,
        has_sessions: false,
    }
}

#[test]
fn requests_wait_while_all_are_saturated() {
    let jobs = &jobs()[..400];
    let mut setup = setup("2", 20.0);
    let waits = |setup: &SimulationSetup| {
        let results = Simulation::new(setup, jobs, KV_AWARE, 1).run(|| ());
        (results.served.len(), results.placements.len())
    };
    assert_eq!(waits(&setup), (400, 400));
    let max_wait = Duration::from_hours(1);
    setup.admission = Some(admission(max_wait));
    assert_eq!(waits(&setup), (400, 400), "each request is sent in the end");
    setup.admission = Some(admission(Duration::ZERO));
    let (served, placed) = waits(&setup);
    assert!(
        served == placed && placed < 400,
        "{served} {placed}: those that may not wait are rejected"
    );
}

#[test]
fn the_queue_serves_least_work_and_refuses_late() {
    let jobs = &jobs()[..400];
    let mut setup = setup("2", 5.0);
    let run = |setup: &SimulationSetup| Simulation::new(setup, jobs, KV_AWARE, 1).run(|| ());
    let in_engines = run(&setup).figures(&OBJECTIVES);
    let max_wait = Duration::from_hours(1);
    let thresholds = SaturationThresholds {
        waiting: Some(2),
        ..SaturationThresholds::default()
    };
    setup.admission = Some(SimulatedAdmission {
        thresholds,
        ..admission(max_wait)
    });
    let ordered = run(&setup).figures(&OBJECTIVES);
    assert!(
        ordered.ttft_p50 < 0.7 * in_engines.ttft_p50,
        "{ordered:?} {in_engines:?}"
    );
    let objective = Some(Duration::from_secs(2));
    setup.admission = setup.admission.map(|admission| SimulatedAdmission {
        objective,
        ..admission
    });
    let results = run(&setup);
    let refusing = results.figures(&OBJECTIVES);
    assert!(results.served.len() == results.placements.len() && results.served.len() < 400);
    // Refused clients repeat their requests twice, and their TTFT counts from the first try. The prediction does not
    // contain the wait for a sequence slot, so some requests that come too late are sent.
    assert!(
        refusing.ttft_p99 < 0.8 * ordered.ttft_p99,
        "{refusing:?} {ordered:?}"
    );
}

/// Returns predicted ÷ measured time for each measured point of a kind: `prefill` or `decode`.
fn engine_fit_ratios(kind: &str) -> Vec<f64> {
    let spec = EnginePreset::CpuVllm.spec();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine_fit/points.csv");
    let points = fs::read_to_string(path).unwrap();
    let lines = points.lines().filter(|line| line.starts_with(kind));
    let ratio = |line: &str| {
        let fields: Vec<f64> = line
            .split(',')
            .skip(1)
            .map(|field| field.parse().unwrap())
            .collect();
        let [prompt, sequences, context, measured] = fields[..4] else {
            panic!("{line}")
        };
        let step = spec.step_base.as_secs_f64();
        let predicted = if kind == "prefill" {
            let pairs = spec.cost_model.attention_pair_seconds * prompt * prompt / 2.0;
            spec.cost_model.front_end_seconds
                + step
                + prompt * spec.prefill_token.as_secs_f64()
                + pairs
        } else {
            let sequences = sequences * spec.decode_sequence.as_secs_f64();
            step + sequences + context * spec.kv_token.as_secs_f64()
        };
        predicted * 1e3 / measured
    };
    lines.map(ratio).collect()
}

#[test]
fn the_measured_preset_has_the_stated_error() {
    for (kind, points, bound) in [("prefill", 11, 0.02), ("decode", 24, 0.09)] {
        let ratios = engine_fit_ratios(kind);
        let errors = ratios.iter().map(|ratio| (ratio - 1.0).abs());
        let mean = errors.sum::<f64>() / ratios.len() as f64;
        assert!(ratios.len() == points && mean < bound, "{kind}: {mean}");
    }
}

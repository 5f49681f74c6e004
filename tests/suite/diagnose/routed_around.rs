//! Five topics: conditions that routing hides because it sends few requests to the backend, engines with long
//! prompts, engines that evict conversations, metrics pages that no longer change, and a severity that depends on
//! the share of affected clients.

use super::engines::{EngineFixture, Traffic};
use super::faults::FAULTS;
use super::fleet_model::{BASELINE_STEPS, MINUTE_STEPS, Plant, Tick, last_diagnosis};
use tokenweir_diagnose::{
    AttemptCounts, BackendRequestCounts, Diagnosis, DiagnosisSample, FleetBackend,
    GatewayObservations, Verdict, VerdictSeverity,
};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::EngineLoad;
use tokenweir_routing::resilience::Availability;
use tokenweir_sim::engine::EngineSpec;

fn healthy(backends: usize, seed: u64) -> Plant {
    let mut plant = Plant::new(backends, seed);
    plant.play(BASELINE_STEPS, |_, _, tick| {
        tick.running = tick.running.max(3.0);
    });
    plant
}

/// Sets the traffic of a step while routing avoids the first backend: this backend gets one request in 30 s,
/// and the others have constant load. `lag` is the additional delay of its first tokens, in seconds.
fn avoid_first(step: u64, place: usize, lag: f64, tick: &mut Tick) {
    tick.running = tick.running.max(3.0);
    if place == 0 {
        tick.requests = if step.is_multiple_of(6) { 1.0 } else { 0.0 };
        (tick.running, tick.waiting, tick.cancelled, tick.lag) = (tick.requests, 0.0, 0.0, lag);
    }
}

fn at_first<'a>(diagnosis: &'a Diagnosis, rule: &str) -> Option<&'a Verdict> {
    let mut verdicts = diagnosis.verdicts.iter();
    verdicts.find(|it| it.verdict == *rule && it.backend == "gpu-0")
}

#[test]
fn an_avoided_backend_is_named_while_slower() {
    let is_avoided = |it: &Diagnosis| at_first(it, "backend_avoided").is_some();
    for (lag, is_named) in [(0.5, true), (0.005, false)] {
        let mut plant = healthy(3, 3);
        let during = plant.play(10 * MINUTE_STEPS, |step, place, tick| {
            avoid_first(step, place, lag, tick);
        });
        assert_eq!(during.last().map(is_avoided), Some(is_named), "{lag}");
        let first = during.iter().position(is_avoided).unwrap_or(usize::MAX) as u64;
        assert!(first >= 4 * MINUTE_STEPS, "{first}");
        let after = plant.play(6 * MINUTE_STEPS, |_, _, tick| {
            tick.running = tick.running.max(3.0);
        });
        assert_eq!(after.last().map(is_avoided), Some(false));
    }
}

#[test]
fn an_avoided_backends_verdict_ends_when_fast() {
    let mut plant = healthy(3, 4);
    plant.play(MINUTE_STEPS, |_, place, tick| {
        tick.running = tick.running.max(3.0);
        tick.requests = tick.requests.max(6.0);
        if place == 0 {
            tick.lag = 2.0;
        }
    });
    let mut run = |lag: f64, minutes: u64| {
        let diagnoses = plant.play(minutes * MINUTE_STEPS, |step, place, tick| {
            avoid_first(step, place, lag, tick);
        });
        at_first(diagnoses.last()?, "front_end_gap").map(|it| it.cause.clone())
    };
    let held = run(2.0, 6).expect("two requests a minute show that the cause lasts");
    assert!(held.is_some_and(|cause| cause.contains("routing avoids it")));
    assert_eq!(run(0.005, 6), None, "these requests show that it is over");
}

#[test]
fn without_requests_a_verdict_ends() {
    for (model, is_held) in [("m", true), ("other", false)] {
        let mut plant = healthy(3, 4);
        plant.fleet.backends = (0..3)
            .map(|place| listing(place, if place == 0 { model } else { "m" }))
            .collect();
        let diagnoses = plant.play(8 * MINUTE_STEPS, |step, place, tick| {
            tick.running = tick.running.max(3.0);
            tick.requests = tick.requests.max(6.0);
            if place == 0 && step < MINUTE_STEPS {
                tick.lag = 2.0;
            } else if place == 0 {
                (tick.requests, tick.running, tick.waiting, tick.cancelled) = (0.0, 0.0, 0.0, 0.0);
            }
        });
        let is_named = |it: &Diagnosis| at_first(it, "front_end_gap").map(|it| it.is_held);
        assert!(is_named(&diagnoses[MINUTE_STEPS as usize]).is_some());
        let last = diagnoses.last().and_then(is_named);
        assert_eq!(last, is_held.then_some(true), "{model}");
    }
}

/// Builds an available backend with this index that lists only this model.
fn listing(place: usize, model: &str) -> FleetBackend {
    FleetBackend {
        id: BackendId::new(&format!("gpu-{place}")),
        host: "127.0.0.1".into(),
        models: vec![model.into()],
        state: Availability::Available,
        is_up: true,
        reason: None,
        drain: None,
        attempts: AttemptCounts::default(),
        restarts: 0,
        engine_switches: 0,
        facts: Vec::new(),
    }
}

#[test]
fn long_prompts_are_not_the_batch_limit() {
    let spec = EngineSpec {
        blocks: 200_000,
        ..EngineSpec::DEFAULT
    };
    let usual = Traffic {
        rate: 0.5,
        prompt: (80, 160),
        output: (40, 80),
    };
    let long = Traffic {
        rate: 1.0,
        prompt: (40_000, 60_000),
        output: (10, 30),
    };
    let mut causes = Vec::new();
    for seed in 0..3 {
        let mut fixture = EngineFixture::new(spec, seed);
        (0..BASELINE_STEPS).for_each(|_| drop(fixture.step(usual)));
        for _ in 0..4 * MINUTE_STEPS {
            let verdicts = fixture.step(long).verdicts;
            causes.extend(verdicts.into_iter().filter_map(|it| it.cause));
        }
    }
    assert!(!causes.is_empty());
    assert!(
        !causes.iter().any(|it| it.contains("batch is at its limit")),
        "{causes:?}"
    );
}

/// Returns the diagnosis of two backends after `steps` steps. `sample` changes the usual metrics page and the
/// usual observations of the gateway, for each step and backend.
fn two_backends(
    steps: u64,
    sample: impl Fn(u64, usize, &mut EngineLoad, &mut GatewayObservations),
) -> Diagnosis {
    last_diagnosis(steps, |step, at| {
        let samples = [0, 1].map(|place| {
            let total = |per_step: f64| Some(per_step * step as f64);
            let mut page = EngineLoad {
                kv_usage: Some(0.2),
                running: Some(4.0),
                waiting: Some(0.0),
                prompt_tokens: total(1_000.0),
                generation_tokens: total(1_000.0),
                first_token_seconds: total(1.0),
                first_tokens: total(5.0),
                gap_seconds: total(20.0),
                gaps: total(1_000.0),
                ..EngineLoad::default()
            };
            let counts = BackendRequestCounts {
                generated: 5,
                ..BackendRequestCounts::default()
            };
            let mut gateway = GatewayObservations {
                in_flight: 4,
                weight: 1,
                counts,
                ..Default::default()
            };
            sample(step, place, &mut page, &mut gateway);
            let (page, gateway) = (Some(page), Some(gateway));
            DiagnosisSample {
                at,
                is_up: true,
                page,
                gateway,
                gpus: None,
            }
        });
        samples.into()
    })
}

#[test]
fn long_prompts_are_no_slow_engine() {
    let verdict_with = |pending_tokens| {
        let diagnosis = two_backends(2 * MINUTE_STEPS, |step, place, page, gateway| {
            if place == 0 {
                page.gap_seconds = Some(300.0 * step as f64);
                (gateway.pending, gateway.pending_tokens) = (2, pending_tokens);
            }
        });
        at_first(&diagnosis, "slow_engine").cloned()
    };
    assert_eq!(verdict_with(150_000), None);
    let slow = verdict_with(1_000).expect("a backend with short prompts is slow");
    assert!(
        slow.remedy.contains("that of the other backend is 20 ms"),
        "{}",
        slow.remedy
    );
}

#[test]
fn evicted_conversations_are_no_slow_engine() {
    let verdicts_with = |hits, predicted| {
        let diagnosis = two_backends(2 * MINUTE_STEPS, |step, place, page, gateway| {
            if place == 0 {
                page.gap_seconds = Some(300.0 * step as f64);
                page.prefix_queries = Some(5_000.0 * step as f64);
                page.prefix_hits = Some(hits * step as f64);
                gateway.counts = BackendRequestCounts {
                    first_outputs: 5,
                    first_output_seconds: 15.0,
                    slow_first_outputs: 4,
                    prompt_tokens: 5_000.0,
                    known_tokens: 4_000.0,
                    reusable_tokens: predicted,
                    ..gateway.counts
                };
            }
        });
        let cause = |rule: &str| at_first(&diagnosis, rule).map(|it| it.cause.clone());
        (
            cause("slow_engine").is_some(),
            cause("prefix_cache_misses").flatten(),
        )
    };
    let evicted = "evicted: more conversations are in progress than fit into the KV cache";
    assert_eq!(verdicts_with(700.0, 1_000.0), (false, Some(evicted.into())));
    assert_eq!(verdicts_with(3_500.0, 3_800.0), (true, None), "it has them");
    assert_eq!(
        verdicts_with(700.0, 3_800.0),
        (true, None),
        "others have them"
    );
}

#[test]
fn frozen_metrics_need_load_for_a_verdict() {
    let blind = |generated| {
        let diagnosis = two_backends(2 * MINUTE_STEPS, |_, place, page, gateway| {
            if place == 0 {
                let zero = Some(7.0);
                *page = EngineLoad {
                    prompt_tokens: zero,
                    generation_tokens: zero,
                    first_token_seconds: zero,
                    first_tokens: zero,
                    gap_seconds: zero,
                    gaps: zero,
                    ..*page
                };
                gateway.counts.generated = generated;
            }
        });
        at_first(&diagnosis, "blind").cloned()
    };
    let cause = blind(2).and_then(|verdict| verdict.cause);
    assert!(cause.is_some_and(|cause| cause.contains("stands still")));
    assert_eq!(blind(0), None);
}

#[test]
fn severity_follows_the_share_of_clients() {
    let fault = FAULTS
        .iter()
        .find(|it| it.name == "prefill_starvation")
        .unwrap();
    for (backends, expected) in [
        (1, VerdictSeverity::Critical),
        (30, VerdictSeverity::Warning),
    ] {
        let mut plant = healthy(backends, 6);
        let mut severity = None;
        for _ in 0..2 * MINUTE_STEPS {
            let diagnosis = plant.step(|place, shape, tick, random| {
                fault.apply(place, 1.0, shape, tick, random);
            });
            severity = at_first(&diagnosis, fault.name).map(|it| it.severity);
        }
        assert_eq!(severity, Some(expected), "{backends}");
    }
}

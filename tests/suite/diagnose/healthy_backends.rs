//! A fault of another backend, or of the machine, is not attributed to a healthy backend.

use super::fleet_model::{Plant, Tick};
use std::time::Instant;
use tokenweir_diagnose::EVERY;

/// Healthy steps before an event: eight minutes in which the baselines are learned.
const BASELINE_STEPS: u64 = 96;
const MINUTE_STEPS: u64 = 60 / EVERY.as_secs();

/// The verdicts of this rule in the three minutes that begin with an event, with their backend.
/// `change` gets the number of the step and the index of the backend.
fn named(rule: &str, backends: usize, change: impl Fn(u64, usize, &mut Tick)) -> Vec<String> {
    let mut plant = Plant::new(backends, 5, Instant::now());
    for _ in 0..BASELINE_STEPS {
        plant.step(|_, _, _, _| {});
    }
    let mut named = Vec::new();
    for step in 0..3 * MINUTE_STEPS {
        let diagnosis = plant.step(|place, _, tick, _| change(step, place, tick));
        let verdicts = diagnosis.verdicts.into_iter().filter(|it| it.verdict == rule);
        named.extend(verdicts.map(|it| it.backend));
    }
    named
}

#[test]
fn one_pause_that_stalls_all_streams_is_no_verdict_and_a_second_one_is() {
    let pauses = |steps: &'static [u64]| {
        named("stalls", 2, |step, _, tick| {
            tick.running = tick.running.max(4.0);
            if steps.contains(&step) {
                tick.stalls = tick.running;
            }
        })
    };
    assert_eq!(pauses(&[3]), [""; 0]);
    assert!(!pauses(&[3, 5]).is_empty());
}

#[test]
fn a_fast_backend_beside_a_slow_one_with_a_queue_is_not_called_underused() {
    let with_requests = |requests: f64| {
        named("gpu_underused", 2, move |_, place, tick| {
            if place == 0 {
                (tick.requests, tick.running, tick.waiting) = (requests, 1.0, 0.0);
            } else {
                (tick.requests, tick.running, tick.waiting) = (10.0, 8.0, 9.0);
                tick.gap *= 16.0;
            }
        })
    };
    assert_eq!(with_requests(10.0), [""; 0], "it gets its share");
    assert!(with_requests(2.0).contains(&"gpu-0".to_owned()), "it gets few requests");
}

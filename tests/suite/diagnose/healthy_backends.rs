//! The diagnosis must not attribute a fault of another backend, or of the machine, to a healthy backend. It
//! must name a fault of a backend that has few requests or a long queue.

use super::fleet_model::{MINUTE_STEPS, Plant, Tick};

/// The backends that verdicts of this rule name in the three minutes after the baseline. Each verdict in each
/// step counts once. `change` gets the number of the step and the index of the backend.
fn named(rule: &str, backends: usize, change: impl Fn(u64, usize, &mut Tick)) -> Vec<String> {
    named_within(3, rule, backends, change)
}

/// As [`named`], for this number of minutes.
fn named_within(
    minutes: u64,
    rule: &str,
    backends: usize,
    change: impl Fn(u64, usize, &mut Tick),
) -> Vec<String> {
    let mut plant = Plant::with_baselines(backends, 5);
    let mut named = Vec::new();
    for step in 0..minutes * MINUTE_STEPS {
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
    assert_eq!(with_requests(10.0), [""; 0], "gpu-0 gets its share");
    assert!(with_requests(2.0).contains(&"gpu-0".to_owned()), "gpu-0 gets few requests");
}

#[test]
fn a_backend_with_two_streams_a_minute_that_stall_is_named() {
    let stalls = |stalls: f64| {
        named_within(8, "stalls", 1, move |step, _, tick| {
            let is_stream = step % 6 == 0;
            tick.requests = f64::from(u8::from(is_stream));
            tick.running = 1.0;
            tick.stalls = if is_stream { stalls } else { 0.0 };
        })
    };
    assert!(!stalls(1.0).is_empty());
    assert_eq!(stalls(0.0), [""; 0]);
}

#[test]
fn a_stuck_engine_is_named_although_many_new_requests_wait_for_their_first_output() {
    let stalled = |stalled: f64| {
        named("stalls", 1, move |_, _, tick| {
            (tick.requests, tick.running) = (0.0, 200.0);
            (tick.stalled, tick.stalls) = (stalled, 0.0);
        })
    };
    assert!(!stalled(4.0).is_empty());
    assert_eq!(stalled(1.0), [""; 0]);
}

#[test]
fn eight_requests_that_wait_for_a_full_cache_are_a_backlog_also_beside_a_large_batch() {
    let waiting = |waiting: f64| {
        named("kv_backlog", 1, move |_, _, tick| {
            (tick.requests, tick.running, tick.waiting) = (10.0, 100.0, waiting);
            (tick.kv, tick.queue, tick.ttft) = (0.95, 2.5, 3.0);
        })
    };
    assert!(!waiting(9.0).is_empty());
    assert_eq!(waiting(3.0), [""; 0]);
}

#[test]
fn a_slow_front_end_of_a_backend_with_six_streams_a_minute_is_named() {
    let lag = |lag: f64| {
        named_within(8, "front_end_gap", 1, move |step, _, tick| {
            tick.requests = f64::from(u8::from(step % 2 == 0));
            tick.running = 1.0;
            tick.lag = lag;
        })
    };
    assert!(!lag(0.6).is_empty());
    assert_eq!(lag(0.15), [""; 0]);
}

#[test]
fn a_queue_that_empties_is_a_burst_only_if_slots_are_free_between() {
    let between = |running: f64| {
        named("prefill_starvation", 1, move |step, _, tick| {
            let is_burst = step % 6 < 2;
            (tick.requests, tick.kv, tick.ttft) = (10.0, 0.3, 4.0);
            (tick.queue, tick.waiting) = (3.0, if is_burst { 12.0 } else { 0.0 });
            tick.running = if is_burst { 16.0 } else { running };
        })
    };
    assert!(!between(4.0).is_empty());
    assert_eq!(between(15.0), [""; 0], "the gateway keeps the other requests");
}

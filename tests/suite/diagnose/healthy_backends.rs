//! The diagnosis must not attribute a fault of another backend, or of the machine, to a healthy backend. It
//! must name a fault of a backend that has few requests or a long queue.

use super::fleet_model::{MINUTE_STEPS, Plant, Tick};

/// Simulates the minutes after the baseline twice. Asserts that the rule names no backend if `change` gets
/// the value `harmless`. Returns the backends that the rule names if `change` gets the value `fault`; each
/// verdict in each step counts once. `change` also gets the number of the step and the index of the backend.
fn named_only_with<T: Copy>(
    (rule, backends, minutes): (&str, usize, u64),
    [fault, harmless]: [T; 2],
    change: impl Fn(T, u64, usize, &mut Tick),
) -> Vec<String> {
    let named = |value: T| {
        let mut plant = Plant::with_baselines(backends, 5);
        let diagnoses = plant.play(minutes * MINUTE_STEPS, |step, place, tick| {
            change(value, step, place, tick);
        });
        let verdicts = diagnoses
            .into_iter()
            .flat_map(|diagnosis| diagnosis.verdicts);
        let named = verdicts
            .filter(|it| it.verdict == rule)
            .map(|it| it.backend);
        named.collect::<Vec<_>>()
    };
    assert_eq!(named(harmless), [""; 0], "{rule}");
    let named = named(fault);
    assert!(!named.is_empty(), "{rule}");
    named
}

#[test]
fn only_a_second_pause_has_a_verdict() {
    let pauses = [&[3, 5][..], &[3]];
    named_only_with(("stalls", 2, 3), pauses, |steps, step, _, tick| {
        tick.running = tick.running.max(4.0);
        if steps.contains(&step) {
            tick.stalls = tick.running;
        }
    });
}

#[test]
fn stalls_show_with_two_streams_per_minute() {
    named_only_with(("stalls", 1, 8), [1.0, 0.0], |stalls, step, _, tick| {
        let is_stream = step % 6 == 0;
        tick.requests = f64::from(u8::from(is_stream));
        tick.running = 1.0;
        tick.stalls = if is_stream { stalls } else { 0.0 };
    });
}

#[test]
fn a_stuck_engine_is_named_despite_waiting_requests() {
    named_only_with(("stalls", 1, 3), [4.0, 1.0], |stalled, _, _, tick| {
        (tick.requests, tick.running) = (0.0, 200.0);
        (tick.stalled, tick.stalls) = (stalled, 0.0);
    });
}

#[test]
fn waiting_at_a_full_cache_has_a_verdict() {
    named_only_with(("kv_backlog", 1, 3), [9.0, 3.0], |waiting, _, _, tick| {
        (tick.requests, tick.running, tick.waiting) = (10.0, 100.0, waiting);
        (tick.kv, tick.queue, tick.ttft) = (0.95, 2.5, 3.0);
    });
}

#[test]
fn a_slow_api_server_shows_in_six_streams() {
    named_only_with(
        ("front_end_gap", 1, 8),
        [0.6, 0.15],
        |lag, step, _, tick| {
            tick.requests = f64::from(u8::from(step % 2 == 0));
            tick.running = 1.0;
            tick.lag = lag;
        },
    );
}

#[test]
fn a_queue_with_free_slots_has_no_verdict() {
    // With 15 running requests between the bursts, most sequence slots stay in use, and further requests wait
    // in the gateway.
    named_only_with(
        ("prefill_starvation", 1, 3),
        [4.0, 15.0],
        |running, step, _, tick| {
            let is_burst = step % 6 < 2;
            (tick.requests, tick.kv, tick.ttft) = (10.0, 0.3, 4.0);
            (tick.queue, tick.waiting) = (3.0, if is_burst { 12.0 } else { 0.0 });
            tick.running = if is_burst { 16.0 } else { running };
        },
    );
}

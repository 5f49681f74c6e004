//! The simulated pathologies: the symptoms for each rule, with a random severity.

use super::fleet_model::{Shape, Tick};

/// A pathology of the first backend.
pub(super) struct Fault {
    /// The rule that must name it.
    pub(super) name: &'static str,
    /// Minimum number of backends.
    pub(super) min_backends: usize,
    /// Applies the symptoms to a step. `index` is that of the backend, `severity` is from 0 to 1.
    pub(super) apply: fn(index: usize, severity: f64, &Shape, &mut Tick, &mut fastrand::Rng),
}

/// One for each rule.
pub(super) const FAULTS: [Fault; 14] = [
    Fault { name: "blind", min_backends: 1, apply: blind },
    Fault { name: "kv_thrashing", min_backends: 1, apply: thrashing },
    Fault { name: "kv_backlog", min_backends: 1, apply: backlog },
    Fault { name: "decode_starvation", min_backends: 1, apply: decode_starvation },
    Fault { name: "slow_engine", min_backends: 2, apply: slow_engine },
    Fault { name: "prefill_starvation", min_backends: 1, apply: prefill_starvation },
    Fault { name: "stalls", min_backends: 1, apply: stalls },
    Fault { name: "abort_spike", min_backends: 1, apply: abort_spike },
    Fault { name: "front_end_gap", min_backends: 1, apply: front_end_gap },
    Fault { name: "memory_leak", min_backends: 1, apply: ghosts },
    Fault { name: "memory_leak", min_backends: 1, apply: held_blocks },
    Fault { name: "gpu_underused", min_backends: 2, apply: underused },
    Fault { name: "imbalance", min_backends: 2, apply: imbalance },
    Fault { name: "prefix_cache_misses", min_backends: 1, apply: prefix_misses },
];

fn blind(index: usize, _: f64, _: &Shape, tick: &mut Tick, _: &mut fastrand::Rng) {
    tick.has_page = index != 0;
}

fn thrashing(index: usize, severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    if index == 0 {
        tick.kv = 0.92 + 0.07 * random.f64();
        tick.preemptions = (0.4 + 4.0 * severity + random.f64()).round().max(1.0);
        tick.waiting = (1.0 + 6.0 * severity * random.f64()).round();
        tick.gap *= 2.5 + 3.0 * severity;
        tick.gap_p99 *= 6.0 + 20.0 * severity;
        tick.ttft *= 2.0 + 5.0 * severity;
    }
}

fn backlog(index: usize, severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    if index == 0 {
        tick.kv = 0.9 + 0.09 * random.f64();
        tick.waiting = (tick.running * (0.5 + severity) + 3.0).round();
        tick.queue = 2.0 + 6.0 * severity + random.f64();
        tick.ttft += tick.queue;
    }
}

fn decode_starvation(
    index: usize,
    severity: f64,
    _: &Shape,
    tick: &mut Tick,
    random: &mut fastrand::Rng,
) {
    if index == 0 {
        tick.longest = 9_000.0 + 90_000.0 * severity;
        tick.gap *= 2.2 + 2.0 * severity;
        tick.gap_p99 = 0.6 + 3.0 * severity + 0.3 * random.f64();
        let is_now = random.f64() < 0.5;
        tick.stalled = if is_now { (tick.running * 0.8).round() } else { 0.0 };
        tick.stalls = tick.stalled;
    }
}

fn slow_engine(index: usize, severity: f64, _: &Shape, tick: &mut Tick, _: &mut fastrand::Rng) {
    if index == 0 {
        tick.gap = (0.12 + 0.3 * severity).max(4.0 * tick.gap);
        tick.gap_p99 = 1.5 * tick.gap;
        tick.running *= 2.0;
        tick.ttft *= 4.0;
    }
}

fn prefill_starvation(
    index: usize,
    severity: f64,
    _: &Shape,
    tick: &mut Tick,
    random: &mut fastrand::Rng,
) {
    if index == 0 {
        tick.waiting = 3.0 + (20.0 * severity * random.f64()).round();
        tick.queue = 2.0 + 6.0 * severity + random.f64();
        tick.ttft += tick.queue;
        tick.kv = tick.kv.min(0.75);
    }
}

fn stalls(index: usize, severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    if index == 0 {
        tick.running = tick.running.max(6.0);
        tick.stalled = (tick.running * (0.3 + 0.7 * severity)).ceil();
        tick.stalls = if random.f64() < 0.5 { tick.stalled.ceil() } else { 0.0 };
        tick.made = 1.0 - severity;
    }
}

fn abort_spike(
    index: usize,
    severity: f64,
    _: &Shape,
    tick: &mut Tick,
    random: &mut fastrand::Rng,
) {
    if index == 0 {
        tick.cancelled = (0..tick.requests as u32)
            .filter(|_| random.f64() < 0.3 + 0.6 * severity)
            .count() as f64;
        tick.cancel_wait = 10.0;
        tick.cancel_spread = 8.0 * severity;
    }
}

fn front_end_gap(
    index: usize,
    severity: f64,
    _: &Shape,
    tick: &mut Tick,
    random: &mut fastrand::Rng,
) {
    if index == 0 {
        tick.lag = 0.15 + severity + 0.1 * random.f64() + 0.3 * tick.ttft;
        tick.beyond = 3.0;
    }
}

fn ghosts(index: usize, severity: f64, _: &Shape, tick: &mut Tick, _: &mut fastrand::Rng) {
    if index == 0 {
        let ghosts = (4.0 + 20.0 * severity).round();
        tick.running += ghosts;
        tick.beyond = -ghosts;
        tick.kv = (tick.kv + 0.01 * ghosts).min(0.85);
        tick.cancelled = tick.cancelled.max(f64::from(u8::from(tick.requests > 3.0)));
    }
}

fn held_blocks(index: usize, severity: f64, _: &Shape, tick: &mut Tick, _: &mut fastrand::Rng) {
    tick.requests = 0.0;
    (tick.running, tick.waiting) = (0.0, 0.0);
    tick.kv = if index == 0 { 0.03 + 0.6 * severity } else { 0.0 };
    tick.cancelled = 0.0;
}

fn underused(index: usize, severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    if index == 0 {
        tick.requests = 0.0;
        (tick.running, tick.waiting, tick.kv, tick.cancelled) = (0.0, 0.0, 0.0, 0.0);
    } else {
        tick.waiting = (3.0 + 10.0 * severity * random.f64()).round();
        tick.running = tick.running.max(4.0);
        // The requests start late, but within the TTFT objective of users.
        tick.queue = 0.05;
    }
}

fn imbalance(index: usize, severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    if index == 0 {
        tick.running = 20.0 + (30.0 * severity).round();
        tick.waiting = (2.0 + 6.0 * severity * random.f64()).round();
        tick.kv = 0.75;
        tick.gap *= 2.0;
    } else {
        tick.running = 3.0 + (4.0 * random.f64()).round();
        tick.waiting = 0.0;
        tick.kv = 0.15;
    }
}

fn prefix_misses(
    index: usize,
    severity: f64,
    shape: &Shape,
    tick: &mut Tick,
    _: &mut fastrand::Rng,
) {
    if index == 0 {
        tick.hit = shape.hit * 0.4 * (1.0 - severity);
        tick.reusable = tick.reusable.max(0.6);
        tick.reusable_here = tick.reusable * severity;
        tick.ttft *= 1.8 + 2.0 * severity;
    }
}

//! The simulated faults of backends: the symptoms that each rule of the diagnosis must recognize, with a
//! random severity.

use super::fleet_model::{Shape, Tick};

/// Changes a step of a backend so that its values show symptoms of a severity from 0 to 1.
type Symptoms = fn(severity: f64, &Shape, &mut Tick, &mut fastrand::Rng);

/// A fault of the first backend of a fleet. It changes the values of healthy steps.
pub(super) struct Fault {
    /// The rule whose verdict must name the fault.
    pub(super) name: &'static str,
    /// Minimum number of backends in the fleet.
    pub(super) min_backends: usize,
    first: Symptoms,
    others: Symptoms,
}

/// The faults. Each has the name of the rule that must recognize it.
pub(super) const FAULTS: [Fault; 16] = [
    Fault {
        name: "blind",
        min_backends: 1,
        first: blind,
        others: healthy,
    },
    Fault {
        name: "kv_thrashing",
        min_backends: 1,
        first: thrashing,
        others: healthy,
    },
    Fault {
        name: "kv_backlog",
        min_backends: 1,
        first: backlog,
        others: healthy,
    },
    Fault {
        name: "decode_starvation",
        min_backends: 1,
        first: decode_starvation,
        others: healthy,
    },
    Fault {
        name: "slow_engine",
        min_backends: 2,
        first: slow_engine,
        others: healthy,
    },
    Fault {
        name: "prefill_starvation",
        min_backends: 1,
        first: prefill_starvation,
        others: healthy,
    },
    Fault {
        name: "stalls",
        min_backends: 1,
        first: stalls,
        others: healthy,
    },
    Fault {
        name: "abort_spike",
        min_backends: 1,
        first: abort_spike,
        others: healthy,
    },
    Fault {
        name: "front_end_gap",
        min_backends: 1,
        first: front_end_gap,
        others: healthy,
    },
    Fault {
        name: "memory_leak",
        min_backends: 1,
        first: ghosts,
        others: healthy,
    },
    Fault {
        name: "memory_leak",
        min_backends: 1,
        first: held_blocks,
        others: idle,
    },
    Fault {
        name: "shared_backend",
        min_backends: 1,
        first: other_clients,
        others: healthy,
    },
    Fault {
        name: "stalls",
        min_backends: 2,
        first: swallowed,
        others: healthy,
    },
    Fault {
        name: "prefix_cache_misses",
        min_backends: 1,
        first: prefix_misses,
        others: healthy,
    },
    Fault {
        name: "unusual_responses",
        min_backends: 1,
        first: empty_responses,
        others: healthy,
    },
    Fault {
        name: "unusual_responses",
        min_backends: 1,
        first: cut_responses,
        others: healthy,
    },
];

impl Fault {
    /// Changes a step of the backend with this index. A `severity` of 0 is barely noticeable, 1 is the
    /// maximum.
    pub(super) fn apply(
        &self,
        index: usize,
        severity: f64,
        shape: &Shape,
        tick: &mut Tick,
        random: &mut fastrand::Rng,
    ) {
        let symptoms = if index == 0 { self.first } else { self.others };
        symptoms(severity, shape, tick, random);
    }
}

fn healthy(_: f64, _: &Shape, _: &mut Tick, _: &mut fastrand::Rng) {}

fn idle(_: f64, _: &Shape, tick: &mut Tick, _: &mut fastrand::Rng) {
    tick.requests = 0.0;
    (tick.running, tick.waiting, tick.kv, tick.cancelled) = (0.0, 0.0, 0.0, 0.0);
}

fn blind(_: f64, _: &Shape, tick: &mut Tick, _: &mut fastrand::Rng) {
    tick.has_page = false;
}

fn thrashing(severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    tick.kv = 0.92 + 0.07 * random.f64();
    tick.preemptions = (0.4 + 4.0 * severity + random.f64()).round().max(1.0);
    tick.waiting = (1.0 + 6.0 * severity * random.f64()).round();
    tick.gap *= 2.5 + 3.0 * severity;
    tick.gap_p99 *= 6.0 + 20.0 * severity;
    tick.ttft *= 2.0 + 5.0 * severity;
}

fn backlog(severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    tick.kv = 0.9 + 0.09 * random.f64();
    tick.waiting = (tick.running * (0.5 + severity) + 3.0).round();
    tick.queue = 2.0 + 6.0 * severity + random.f64();
    tick.ttft += tick.queue;
}

fn decode_starvation(severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    tick.longest = 9_000.0 + 90_000.0 * severity;
    tick.gap *= 2.2 + 2.0 * severity;
    tick.gap_p99 = 0.6 + 3.0 * severity + 0.3 * random.f64();
    let is_now = random.f64() < 0.5;
    tick.stalled = if is_now {
        (tick.running * 0.8).round()
    } else {
        0.0
    };
    tick.stalls = tick.stalled;
}

fn slow_engine(severity: f64, _: &Shape, tick: &mut Tick, _: &mut fastrand::Rng) {
    tick.gap = (0.12 + 0.3 * severity).max(4.0 * tick.gap);
    tick.gap_p99 = 1.5 * tick.gap;
    tick.running *= 2.0;
    tick.ttft *= 4.0;
}

fn prefill_starvation(severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    tick.waiting = 3.0 + (20.0 * severity * random.f64()).round();
    tick.queue = 2.0 + 6.0 * severity + random.f64();
    tick.ttft += tick.queue;
    tick.kv = tick.kv.min(0.75);
}

fn stalls(severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    tick.running = tick.running.max(6.0);
    tick.stalled = (tick.running * (0.3 + 0.7 * severity)).ceil();
    tick.stalls = if random.f64() < 0.5 {
        tick.stalled.ceil()
    } else {
        0.0
    };
    tick.made = 1.0 - severity;
}

fn abort_spike(severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    tick.cancelled = (0..tick.requests as u32)
        .filter(|_| random.f64() < 0.3 + 0.6 * severity)
        .count() as f64;
    tick.cancel_wait = 10.0;
    tick.cancel_spread = 8.0 * severity;
}

fn front_end_gap(severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    tick.lag = 0.15 + severity + 0.1 * random.f64() + 0.3 * tick.ttft;
    tick.beyond = 3.0;
}

fn empty_responses(severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    tick.empty = 0.25 + 0.65 * severity + 0.1 * random.f64();
}

fn cut_responses(severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    tick.cut = 0.7 + 0.2 * severity + 0.1 * random.f64();
}

fn ghosts(severity: f64, _: &Shape, tick: &mut Tick, _: &mut fastrand::Rng) {
    let ghosts = (4.0 + 20.0 * severity).round();
    tick.running += ghosts;
    tick.beyond = -ghosts;
    tick.kv = (tick.kv + 0.01 * ghosts).min(0.85);
    tick.cancelled = tick.cancelled.max(f64::from(u8::from(tick.requests > 3.0)));
}

fn held_blocks(severity: f64, shape: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    idle(severity, shape, tick, random);
    tick.kv = 0.03 + 0.6 * severity;
}

/// A batch job sends its requests to the engine, and not through the gateway.
fn other_clients(severity: f64, _: &Shape, tick: &mut Tick, random: &mut fastrand::Rng) {
    tick.foreign = 10.0 + (30.0 * severity * random.f64()).round();
    let running = (60.0 + 60.0 * severity).round();
    let waiting = 5.0 + (100.0 * severity * random.f64()).round();
    tick.beyond = -(running + waiting);
    tick.running += running;
    tick.waiting += waiting;
    tick.kv = 0.97;
    tick.preemptions = (4.0 * severity).round();
}

/// A proxy in front of the engine swallows requests, and routing soon sends none.
fn swallowed(severity: f64, _: &Shape, tick: &mut Tick, _: &mut fastrand::Rng) {
    tick.requests = 0.0;
    tick.running = 0.0;
    tick.waiting = 0.0;
    tick.kv = 0.0;
    tick.beyond = 1.0 + (3.0 * severity).round();
    tick.overdue = 8.0 + 60.0 * severity;
}

fn prefix_misses(severity: f64, shape: &Shape, tick: &mut Tick, _: &mut fastrand::Rng) {
    tick.hit = shape.hit * 0.4 * (1.0 - severity);
    tick.reusable = tick.reusable.max(0.6);
    tick.reusable_here = tick.reusable * severity;
    tick.ttft *= 1.8 + 2.0 * severity;
}

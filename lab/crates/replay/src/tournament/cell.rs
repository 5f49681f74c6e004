//! One setup of a tournament, drawn at random.

use crate::engines::engine_presets::EnginePreset;
use crate::results::LatencyObjectives;
use crate::trace::TraceRequest;
use crate::workload::{ArrivalProcess, TrafficShape};
use serde::Serialize;
use tokenweir_core::routing;
use tokenweir_sim::engine::EngineSpec;

/// The fleet of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FleetKind {
    /// Equal backends.
    Equal,
    /// Half of the backends have half of the speed.
    TwoSpeeds,
    /// Each cache has a sixth of the size.
    SmallCaches,
    /// Half of the caches have a sixth of the size.
    UnequalCaches,
    /// One backend takes three times as long as the others.
    OneSlow,
    /// One backend joins after a third of the time, with an empty cache.
    OneJoins,
    /// At most 24 sequences run at once.
    FewSlots,
}

/// The latency objectives of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectiveKind {
    /// Time to first token.
    Ttft,
    /// Time per output token.
    Tpot,
    /// Both.
    Both,
    /// Time to last token.
    EndToEnd,
}

/// One setup of the tournament.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// Number of the cell, from which everything else is drawn.
    pub number: u64,
    /// Content of the requests.
    pub shape: TrafficShape,
    /// Arrivals of the requests.
    pub arrivals: ArrivalProcess,
    /// Engines.
    pub engine: EnginePreset,
    /// Fleet.
    pub fleet: FleetKind,
    /// Number of backends.
    pub backends: usize,
    /// Arrival rate as a share of the capacity.
    pub load: f64,
    /// Objectives.
    pub objective: ObjectiveKind,
    /// Objectives as a multiple of the latency without load.
    pub slack: f64,
    /// Scrape interval in seconds.
    pub scrape: f64,
    /// Whether the gateway knows the objective of the time to first token.
    pub knows_objective: bool,
    /// Share of the responses without cached tokens.
    pub without_cached_tokens: f64,
    /// Share of the requests whose response is not a stream.
    pub non_streaming: f64,
    /// Standard deviation of the logarithm of the bytes per token among prompts.
    pub bytes_sigma: f64,
    /// Whether requests wait in the gateway while all backends are saturated, whatever the router.
    pub admission: bool,
    /// Number of gateways that share the traffic and tell each other nothing. It is not drawn.
    pub gateways: usize,
}

const FLEETS: [FleetKind; 7] = [
    FleetKind::Equal,
    FleetKind::TwoSpeeds,
    FleetKind::SmallCaches,
    FleetKind::UnequalCaches,
    FleetKind::OneSlow,
    FleetKind::OneJoins,
    FleetKind::FewSlots,
];
const OBJECTIVES: [ObjectiveKind; 4] =
    [ObjectiveKind::Ttft, ObjectiveKind::Tpot, ObjectiveKind::Both, ObjectiveKind::EndToEnd];
const FLEET_SIZES: [usize; 4] = [2, 4, 8, 16];
const LOADS: [f64; 7] = [0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5];
const SLACKS: [f64; 3] = [2.0, 4.0, 8.0];
const SCRAPE_SECONDS: [f64; 5] = [0.1, 0.1, 0.1, 1.0, 5.0];
/// Sequences per backend at which the objective of the time per output token is based.
const REFERENCE_SEQUENCES: u32 = 32;

impl Cell {
    /// Draws a cell.
    pub fn draw(seed: u64, number: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(routing::mix(seed ^ number << 20));
        Self {
            number,
            shape: one_of(&mut random, &TrafficShape::ALL),
            arrivals: one_of(&mut random, &ArrivalProcess::ALL),
            engine: one_of(&mut random, &EnginePreset::ALL),
            fleet: one_of(&mut random, &FLEETS),
            backends: one_of(&mut random, &FLEET_SIZES),
            load: one_of(&mut random, &LOADS),
            objective: one_of(&mut random, &OBJECTIVES),
            slack: one_of(&mut random, &SLACKS),
            scrape: one_of(&mut random, &SCRAPE_SECONDS),
            knows_objective: random.bool(),
            without_cached_tokens: one_of(&mut random, &[0.0, 0.0, 0.5, 1.0]),
            non_streaming: one_of(&mut random, &[0.0, 0.0, 0.3, 0.8]),
            bytes_sigma: one_of(&mut random, &[0.0, 0.15, 0.4]),
            admission: random.bool(),
            gateways: 1,
        }
    }

    /// The engine of each backend.
    pub(super) fn specs(&self) -> Vec<EngineSpec> {
        let spec = |position: usize| {
            let mut spec = self.engine.spec();
            let is_odd = position % 2 == 1;
            match self.fleet {
                FleetKind::TwoSpeeds if is_odd => spec = slowed(spec, 2.0),
                FleetKind::OneSlow if position == 0 => spec = slowed(spec, 3.0),
                FleetKind::SmallCaches => spec.blocks /= 6,
                FleetKind::UnequalCaches if is_odd => spec.blocks /= 6,
                FleetKind::FewSlots => spec.max_num_seqs = 24,
                _ => {}
            }
            spec
        };
        (0..self.backends).map(spec).collect()
    }

    /// The bounds: a multiple of the latency of a long prompt on an idle engine, and of the time
    /// per output token in a batch of [`REFERENCE_SEQUENCES`].
    pub(super) fn objectives(&self, requests: &[TraceRequest]) -> LatencyObjectives {
        let spec = self.engine.spec();
        let mut prompts: Vec<u32> = requests.iter().map(|request| request.prompt_tokens).collect();
        prompts.sort_unstable();
        let long = prompts[prompts.len() * 9 / 10];
        let prefill = (spec.prefill_token * long).as_secs_f64();
        let pairs = f64::from(long).powi(2) / 2.0;
        let ttft =
            spec.step_base.as_secs_f64() + prefill + spec.cost_model.attention_pair_seconds * pairs;
        let tpot = spec.step_base
            + spec.decode_sequence * REFERENCE_SEQUENCES
            + spec.kv_token * (REFERENCE_SEQUENCES * 1_000);
        let ttft = (ttft * self.slack).max(0.2);
        let tpot = tpot.as_secs_f64() * self.slack;
        match self.objective {
            ObjectiveKind::Ttft => LatencyObjectives::new(ttft, f64::INFINITY),
            ObjectiveKind::Tpot => LatencyObjectives::new(f64::INFINITY, tpot),
            ObjectiveKind::Both => LatencyObjectives::new(ttft, tpot),
            ObjectiveKind::EndToEnd => {
                LatencyObjectives { is_end_to_end: true, ..LatencyObjectives::new(ttft, tpot) }
            }
        }
    }
}

/// A random one of the values.
fn one_of<T: Copy>(random: &mut fastrand::Rng, values: &[T]) -> T {
    values[random.usize(..values.len())]
}

fn slowed(spec: EngineSpec, factor: f64) -> EngineSpec {
    EngineSpec {
        step_base: spec.step_base.mul_f64(factor),
        prefill_token: spec.prefill_token.mul_f64(factor),
        decode_sequence: spec.decode_sequence.mul_f64(factor),
        kv_token: spec.kv_token.mul_f64(factor),
        ..spec
    }
}

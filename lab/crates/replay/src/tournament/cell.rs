//! A cell is one setup of a tournament: a kind of traffic, a fleet of backends and a load.

use crate::engines::engine_presets::EnginePreset;
use crate::results::LatencyObjectives;
use crate::workload::{Traffic, TrafficShape};
use serde::Serialize;
use tokenweir_protocol::named_enum;
use tokenweir_sim::engine::EngineSpec;

named_enum! {
    /// The fleet of backends in a cell (one setup of the tournament).
    pub enum FleetKind {
        /// Llama 3.1 8B on four backends with one L40S each.
        Equal = "equal",
        /// Llama 3.1 8B on four backends: one with an H100, and three with an L40S each. An L40S has a
        /// third of the speed of the H100 and less than half of its cache.
        Unequal = "unequal",
        /// Llama 3.1 70B on four backends with four H100 each. Their caches have 153,000 tokens, a third
        /// of the usual size.
        SmallCaches = "small_caches",
    }
}

/// One setup of the tournament: a kind of traffic, a fleet and a load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cell {
    /// The kind of traffic.
    pub shape: Traffic,
    /// The fleet of backends.
    pub fleet: FleetKind,
    /// The load as a share of the capacity of the fleet for this traffic.
    pub load: f64,
}

/// Objectives of the TTFT and of the time per output token: those of `MLPerf` for a model of 8 billion
/// parameters.
pub const OBJECTIVES: LatencyObjectives = LatencyObjectives::new(2.0, 0.1);

impl FleetKind {
    pub(super) fn specs(self) -> Vec<EngineSpec> {
        match self {
            Self::Equal => vec![EnginePreset::Llama8bL40s.spec(); 4],
            Self::Unequal => {
                let mut specs = Self::Equal.specs();
                specs[0] = EnginePreset::Llama8bH100.spec();
                specs
            }
            Self::SmallCaches => {
                let spec = EnginePreset::Llama70bH100.spec();
                vec![
                    EngineSpec {
                        blocks: spec.blocks / 3,
                        ..spec
                    };
                    4
                ]
            }
        }
    }
}

impl Cell {
    /// All cells (setups) of the tournament at these loads.
    pub fn all(loads: &[f64]) -> Vec<Self> {
        // Mixed traffic is left out: its results are between those of agents and of chats.
        let shapes = TrafficShape::ALL
            .into_iter()
            .filter(|shape| *shape != TrafficShape::Mixed);
        Self::of(shapes.map(Traffic::from), loads)
    }

    /// The cells with this number of drawn traffics.
    pub fn drawn(count: u32, loads: &[f64]) -> Vec<Self> {
        Self::of((0..count).map(Traffic::Drawn), loads)
    }

    fn of(traffics: impl Iterator<Item = Traffic>, loads: &[f64]) -> Vec<Self> {
        let fleets = |shape| FleetKind::ALL.into_iter().map(move |fleet| (shape, fleet));
        let cell = |(shape, fleet)| {
            let loads = loads.iter().copied();
            loads.map(move |load| Self { shape, fleet, load })
        };
        traffics.flat_map(fleets).flat_map(cell).collect()
    }

    /// Name in results, such as `retrieval/equal/0.95`.
    pub fn name(&self) -> String {
        format!("{}/{}/{}", self.shape, self.fleet.as_str(), self.load)
    }
}

//! A tournament of routers. Each combination of a kind of traffic, a fleet and a load is a *cell*. In each
//! cell, every router is simulated with several generated traffics.
//!
//! The first part of a run, `WARM_UP` of its time, is not measured, so that the first fill of the caches
//! does not count. The load of a cell is a share of the capacity. The capacity is the greatest load at which
//! any of `CALIBRATION_ROUTERS`, without admission control, has 90 % of its goodput without load, with traffic
//! seed 0, which no result uses. The regret of a router in a cell is the mean goodput of the best router minus its
//! own. [`ReferenceRouter::ExactState`] does not count as the best router, because no gateway can have its
//! knowledge, and [`ReferenceRouter::WithoutAdmission`] and [`ReferenceRouter::WithoutSessions`] do not, because they
//! are settings of the gateway.

mod bound;
mod cell;
mod score;
pub mod standings;

pub use cell::{Cell, FleetKind, OBJECTIVES};
pub use score::RouterScore;

use super::experiment::bisect_speed;
use super::parallel::parallel_map;
use super::results::mean_of;
use super::routers::{ReferenceRouter, RouterKind};
use super::simulation::{SimulatedAdmission, Simulation, SimulationSetup};
use super::trace::TraceRequest;
use super::workload::{self, Traffic};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Instant;
use tokenweir_routing::{Policy, PolicyKind};
use tokenweir_sim::engine::EngineSpec;

/// The parameters that all cells of a tournament share.
#[derive(Debug, Clone)]
pub struct Tournament {
    /// The routers that are compared.
    pub kinds: Vec<RouterKind>,
    /// Settings of the policies of the gateway.
    pub policy: Policy,
    /// Seeds of the traffic, from 1 on.
    pub seeds: RangeInclusive<u64>,
    /// Minimum number of requests of a run.
    pub requests: usize,
    /// Minimum length of a run in seconds, if one request arrives per second at speed 1.
    pub seconds: f64,
    /// Number of gateways. They exchange no messages.
    pub gateways: usize,
    /// Admission control of the gateways, the same for each router. `None`: disabled.
    pub admission: Option<SimulatedAdmission>,
    /// The instant of real time that corresponds to virtual time 0.
    pub epoch: Instant,
}

/// The results of all routers in a cell (one setup of the tournament).
#[derive(Debug, Clone, Serialize)]
pub struct CellResult {
    /// The cell (setup of the tournament) that was simulated.
    pub cell: Cell,
    /// Factor by which requests arrive faster than in the generated traffic, which has about one request per
    /// second.
    pub speed: f64,
    /// Length of a run in seconds.
    pub seconds: f64,
    /// Upper bound of the goodput, from 0 to 1. `None`: the traffic is a closed loop.
    pub bound: Option<f64>,
    /// The scores of each router, by the name of the router. There is one score for each traffic seed.
    pub scores: BTreeMap<&'static str, Vec<RouterScore>>,
}

/// Share of the time of a run, at its start, that is not measured.
const WARM_UP: f64 = 0.3;
/// The routers that do not count as the best router of a cell.
const NO_COMPETITORS: [&str; 3] = [
    ReferenceRouter::ExactState.as_str(),
    ReferenceRouter::WithoutAdmission.as_str(),
    ReferenceRouter::WithoutSessions.as_str(),
];
/// The routers that define the capacity of a cell. Each is the best one for some traffic.
const CALIBRATION_ROUTERS: [RouterKind; 4] = [
    RouterKind::Reference(ReferenceRouter::WithoutAdmission),
    RouterKind::Shipped(PolicyKind::PrefixAffinity),
    RouterKind::Reference(ReferenceRouter::LlmDNoHitLru),
    RouterKind::Reference(ReferenceRouter::LMetric),
];
/// Goodput at the capacity, relative to the goodput without load.
const CAPACITY_GOODPUT: f64 = 0.9;
/// Maximum number of times that the speed is doubled in the search for the capacity.
const MAX_DOUBLINGS: usize = 12;
/// Number of bisections between two of these speeds.
const BISECTIONS: u32 = 5;

impl Tournament {
    /// Runs cells on all processor cores. `on_step` is called after each cell, on any thread.
    pub fn run(&self, cells: &[Cell], on_step: &(dyn Fn() + Sync)) -> Vec<CellResult> {
        let groups: Vec<&[Cell]> = cells
            .chunk_by(|a, b| (a.shape, a.fleet) == (b.shape, b.fleet))
            .collect();
        let run_group = |group: &&[Cell]| -> Vec<CellResult> {
            let capacity = self.capacity(group[0].shape, group[0].fleet);
            let run = |cell: &Cell| {
                let result = self.run_cell(cell, capacity * cell.load);
                on_step();
                result
            };
            group.iter().map(run).collect()
        };
        parallel_map(&groups, run_group)
            .into_iter()
            .flatten()
            .collect()
    }

    fn run_cell(&self, cell: &Cell, speed: f64) -> CellResult {
        let setup = self.setup(cell.fleet, speed);
        let traffics: Vec<Vec<TraceRequest>> = self
            .seeds
            .clone()
            .map(|seed| self.traffic(cell.shape, speed, seed))
            .collect();
        let bounds = traffics
            .iter()
            .map(|requests| bound::goodput_bound(&setup.specs, requests, speed, OBJECTIVES.ttft));
        let bound = bounds
            .sum::<Option<f64>>()
            .map(|sum| sum / traffics.len() as f64);
        let score = |kind: RouterKind| {
            let seeded = self.seeds.clone().zip(&traffics);
            seeded
                .map(|(seed, requests)| score(&setup, requests, kind, seed))
                .collect()
        };
        let seconds = traffics
            .first()
            .map_or(0.0, |requests| last_start(requests) / speed);
        let scores = self
            .kinds
            .iter()
            .map(|kind| (kind.name(), score(*kind)))
            .collect();
        CellResult {
            cell: *cell,
            speed,
            seconds,
            bound,
            scores,
        }
    }

    fn setup(&self, fleet: FleetKind, speed: f64) -> SimulationSetup {
        let mut setup = SimulationSetup::new(fleet.specs(), self.epoch);
        setup.policy = self.policy;
        setup.known_objectives = OBJECTIVES;
        setup.gateways = self.gateways;
        setup.admission = self.admission;
        setup.speed = speed;
        setup
    }

    fn traffic(&self, shape: Traffic, speed: f64, seed: u64) -> Vec<TraceRequest> {
        let requests = self.requests.max((self.seconds * speed) as usize);
        workload::generate(shape, requests, seed)
    }

    /// The maximum speed at which any of [`CALIBRATION_ROUTERS`] has [`CAPACITY_GOODPUT`].
    fn capacity(&self, shape: Traffic, fleet: FleetKind) -> f64 {
        let alone = Self {
            gateways: 1,
            admission: None,
            ..self.clone()
        };
        let goodput = |kind: RouterKind, speed: f64| {
            let requests = alone.traffic(shape, speed, 0);
            score(&alone.setup(fleet, speed), &requests, kind, 0).goodput
        };
        // At a tenth of the speed at which full batches, without cached tokens, keep the engines always busy,
        // there is no load.
        let requests = self.traffic(shape, 0.0, 0);
        let seconds = |spec: &EngineSpec| {
            let output_token = spec.step_base / spec.max_num_seqs + spec.decode_sequence;
            let work = |request: &TraceRequest| {
                f64::from(request.prompt_tokens) * spec.prefill_token.as_secs_f64()
                    + f64::from(request.output_tokens) * output_token.as_secs_f64()
            };
            requests.iter().map(work).sum::<f64>()
        };
        let busy: f64 = fleet.specs().iter().map(|spec| seconds(spec).recip()).sum();
        let least = 0.1 * busy * requests.len() as f64;
        let unloaded = CALIBRATION_ROUTERS.map(|kind| goodput(kind, least));
        let is_served = |speed: f64| {
            let mut routers = CALIBRATION_ROUTERS.iter().zip(unloaded);
            routers.any(|(kind, unloaded)| goodput(*kind, speed) >= CAPACITY_GOODPUT * unloaded)
        };
        let mut low = least;
        let mut doublings = 0;
        while doublings < MAX_DOUBLINGS && is_served(2.0 * low) {
            low *= 2.0;
            doublings += 1;
        }
        bisect_speed(low..2.0 * low, BISECTIONS, is_served)
    }
}

/// The score of a router with one generated traffic.
fn score(
    setup: &SimulationSetup,
    requests: &[TraceRequest],
    kind: RouterKind,
    seed: u64,
) -> RouterScore {
    let end = last_start(requests) / setup.speed;
    let results = Simulation::new(setup, requests, kind, seed).run(|| ());
    let capacity = setup
        .specs
        .iter()
        .map(|spec| f64::from(spec.capacity()))
        .sum();
    RouterScore::new(
        &results,
        requests,
        &OBJECTIVES,
        WARM_UP * end..end,
        capacity,
    )
}

/// Time at which the last session starts, in seconds at speed 1.
fn last_start(requests: &[TraceRequest]) -> f64 {
    let starts = requests.iter().filter(|request| request.after.is_none());
    starts
        .map(|request| request.at.as_secs_f64())
        .fold(0.0, f64::max)
}

impl CellResult {
    /// Mean of one value of a router's scores over the seeds. `None`: the router did not run.
    pub fn mean(&self, router: &str, read: impl Fn(&RouterScore) -> f64) -> Option<f64> {
        Some(mean_of(self.scores.get(router)?, read))
    }

    /// Regret of a router: how many percentage points its goodput is below the best one. `None`: the router
    /// did not run.
    pub fn regret(&self, router: &str) -> Option<f64> {
        let goodput = |router: &str| self.mean(router, |score| score.goodput);
        let own = goodput(router)?;
        let others = self
            .scores
            .keys()
            .filter(|name| !NO_COMPETITORS.contains(name));
        let best = others.filter_map(|name| goodput(name)).fold(own, f64::max);
        Some((best - own) * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::TrafficShape;
    use tokenweir_protocol::clock;

    #[test]
    fn higher_load_gives_lower_goodput() {
        let kinds = vec![
            RouterKind::Shipped(PolicyKind::RoundRobin),
            RouterKind::Reference(ReferenceRouter::LMetric),
        ];
        let tournament = Tournament {
            kinds,
            policy: Policy::default(),
            seeds: 1..=2,
            requests: 300,
            seconds: 0.0,
            gateways: 1,
            admission: None,
            epoch: clock::now(),
        };
        let cells: Vec<Cell> = Cell::all(&[0.8, 0.95])
            .into_iter()
            .filter(|cell| {
                (cell.shape, cell.fleet) == (TrafficShape::Chat.into(), FleetKind::Unequal)
            })
            .collect();
        let run = || tournament.run(&cells, &|| {});
        let first = run();
        let second = run();
        for (a, b) in first.iter().zip(&second) {
            assert_eq!(a.scores, b.scores);
            assert_eq!(a.speed.to_bits(), b.speed.to_bits());
        }
        let goodput = |at: usize| first[at].mean("lmetric", |score| score.goodput).unwrap();
        assert!(first[0].speed < first[1].speed && goodput(0) > goodput(1));
        assert!(first[1].bound.unwrap() >= goodput(1));
    }
}

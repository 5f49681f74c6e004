//! A tournament of routers: many generated setups ("cells"), each run with every router.
//!
//! The cells are drawn at random from a seed, so that no setup was chosen because of its result. The
//! regret of a router in a cell is the goodput of the best router of that cell minus its own.

mod cell;
pub mod standings;

pub use cell::{Cell, FleetKind, ObjectiveKind};

use super::results::{LatencyObjectives, RunResults};
use super::routers::RouterKind;
use super::simulation::{SimulatedAdmission, Simulation, SimulationSetup};
use super::trace::TraceRequest;
use super::workload::Workload;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokenweir_core::routing::Policy;

/// The result of one router in a cell. A cell is one setup of backends with one workload at one load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RouterScore {
    /// Share of the requests that met the objectives.
    pub goodput: f64,
    /// Median of predicted ÷ true time to first token of streams. NaN: the router does not predict.
    pub prediction_ratio: f64,
    /// Share of prompt tokens from a prefix cache.
    pub cached: f64,
    /// 99th percentile of the time to first token in seconds.
    pub ttft_p99: f64,
}

/// The results of all routers in a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellResult {
    /// The cell.
    pub cell: Cell,
    /// Arrivals per second.
    pub rate: f64,
    /// By name of the router.
    pub scores: BTreeMap<&'static str, RouterScore>,
}

/// Number of requests of a cell: this number, plus a number per backend.
const REQUESTS: (usize, usize) = (400, 150);
/// Share of the requests after which the throughput of a saturated fleet is measured.
const CAPACITY_SHARE: f64 = 0.7;
/// Factor of the speed at which all sessions begin almost at once.
const SATURATION_SPEED: f64 = 1e4;
impl Cell {
    /// Runs the cell with routers, `repeats` times with other requests of the same kind. The scores
    /// are means: with one run of some hundred requests, the best of many routers is the luckiest.
    pub fn run(
        &self,
        kinds: &[RouterKind],
        policy: &Policy,
        epoch: Instant,
        repeats: u64,
    ) -> CellResult {
        let results: Vec<CellResult> = (0..repeats.max(1))
            .map(|repeat| self.run_once(kinds, policy, epoch, self.number + (repeat << 32)))
            .collect();
        CellResult::mean(&results)
    }

    fn run_once(
        &self,
        kinds: &[RouterKind],
        policy: &Policy,
        epoch: Instant,
        seed: u64,
    ) -> CellResult {
        let workload = Workload {
            shape: self.shape,
            arrivals: self.arrivals,
            requests: REQUESTS.0 + REQUESTS.1 * self.backends,
            bytes_sigma: self.bytes_sigma,
        };
        let requests = workload.generate(seed);
        let mut setup = SimulationSetup::new(self.specs(), epoch);
        setup.scrape = Duration::from_secs_f64(self.scrape);
        setup.without_cached_tokens = self.without_cached_tokens;
        setup.non_streaming = self.non_streaming;
        setup.policy = *policy;
        setup.gateways = self.gateways;
        setup.admission = self.admission.then(SimulatedAdmission::default);
        let rate = self.load * capacity(&setup, &requests);
        // The generator makes one request per second on average.
        setup.speed = rate;
        if self.fleet == FleetKind::OneJoins {
            let third = Duration::from_secs_f64(requests.len() as f64 / rate / 3.0);
            setup.joins = Some((self.backends - 1, third));
        }
        let objectives = self.objectives(&requests);
        if self.knows_objective {
            setup.known_objectives = [objectives.ttft, objectives.tpot];
            setup.policy.kv_aware.ttft_objective_seconds =
                if objectives.ttft.is_finite() { objectives.ttft } else { 0.0 };
        }
        let score = |kind: &RouterKind| {
            let results = Simulation::new(&setup, &requests, *kind, seed).run(|_| {});
            (kind.name(), RouterScore::new(&results, &objectives))
        };
        CellResult { cell: self.clone(), rate, scores: kinds.iter().map(score).collect() }
    }
}

/// Requests per second that a saturated fleet ends: all sessions begin at once and are routed to
/// the backend with the fewest requests.
fn capacity(setup: &SimulationSetup, requests: &[TraceRequest]) -> f64 {
    let setup = SimulationSetup {
        speed: SATURATION_SPEED,
        joins: None,
        admission: None,
        gateways: 1,
        ..setup.clone()
    };
    let kind = RouterKind::FewestRequests;
    let results = Simulation::new(&setup, requests, kind, 1).run(|_| {});
    let mut ends: Vec<f64> = results
        .served
        .iter()
        .map(|served| served.arrived_at + served.ttft + served.decode)
        .collect();
    ends.sort_by(f64::total_cmp);
    let count = (CAPACITY_SHARE * ends.len() as f64) as usize;
    count as f64 / ends.get(count.saturating_sub(1)).copied().unwrap_or(1.0).max(1e-3)
}

impl RouterScore {
    fn new(results: &RunResults, objectives: &LatencyObjectives) -> Self {
        let metrics = results.figures(objectives);
        let mut ratios: Vec<f64> = results
            .served
            .iter()
            .map(|served| served.predicted_ttft / served.ttft)
            .filter(|ratio| ratio.is_finite())
            .collect();
        ratios.sort_by(f64::total_cmp);
        Self {
            goodput: metrics.goodput,
            prediction_ratio: ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN),
            cached: metrics.cached,
            ttft_p99: metrics.ttft_p99,
        }
    }
}

/// Runs cells on all cores. `on_result` is called with each result, on any thread.
pub fn run(
    cells: &[Cell],
    kinds: &[RouterKind],
    policy: &Policy,
    epoch: Instant,
    repeats: u64,
    on_result: &(dyn Fn(&CellResult) + Sync),
) -> Vec<CellResult> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(cells.len()));
    let work = || {
        while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = cell.run(kinds, policy, epoch, repeats);
            on_result(&result);
            results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads.min(cells.len()) {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|result| result.cell.number);
    results
}

impl CellResult {
    /// The means of several results of one cell, at least one.
    fn mean(results: &[Self]) -> Self {
        let count = results.len() as f64;
        let mean = |read: &dyn Fn(&Self) -> f64| results.iter().map(read).sum::<f64>() / count;
        let first = &results[0];
        let score = |name: &&'static str| {
            let of_router =
                |read: fn(&RouterScore) -> f64| mean(&|result| read(&result.scores[name]));
            let score = RouterScore {
                goodput: of_router(|score| score.goodput),
                prediction_ratio: of_router(|score| score.prediction_ratio),
                cached: of_router(|score| score.cached),
                ttft_p99: of_router(|score| score.ttft_p99),
            };
            (*name, score)
        };
        Self {
            cell: first.cell.clone(),
            rate: mean(&|result| result.rate),
            scores: first.scores.keys().map(score).collect(),
        }
    }

    /// Regret of a router in points. `None`: the router did not run.
    pub fn regret(&self, router: &str) -> Option<f64> {
        let best = self.scores.values().map(|score| score.goodput).fold(0.0, f64::max);
        Some((best - self.scores.get(router)?.goodput) * 100.0)
    }

    /// The best router.
    pub fn best(&self) -> Option<&'static str> {
        let by_goodput = |a: &RouterScore, b: &RouterScore| a.goodput.total_cmp(&b.goodput);
        let best = self.scores.iter().max_by(|a, b| by_goodput(a.1, b.1));
        best.map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenweir_core::clock;
    use tokenweir_core::routing::PolicyKind;

    #[test]
    fn equal_seeds_give_equal_cells_and_results() {
        let cell = Cell { backends: 2, ..Cell::draw(7, 3) };
        assert_eq!(cell, Cell { backends: 2, ..Cell::draw(7, 3) });
        let kinds = [RouterKind::Shipped(PolicyKind::RoundRobin), RouterKind::LMetric];
        let run = || cell.run(&kinds, &Policy::default(), clock::now(), 2);
        let (first, second) = (run(), run());
        assert_eq!(first.rate.to_bits(), second.rate.to_bits());
        for (name, score) in &first.scores {
            assert_eq!(score.goodput.to_bits(), second.scores[name].goodput.to_bits());
        }
    }
}

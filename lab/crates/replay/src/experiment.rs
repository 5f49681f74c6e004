//! Runs one simulation setup (fleet, load and settings) with several policies and seeds, in parallel on all
//! cores.

use super::parallel::parallel_map;
use super::results::{LatencyObjectives, RunMetrics, mean_of, spread};
use super::routers::RouterKind;
use super::sessions::SessionMetrics;
use super::simulation::{Simulation, SimulationSetup};
use super::trace::TraceRequest;
use serde::Serialize;
use std::ops::Range;
use tokenweir_routing::PolicyKind;

/// An experiment: the parameters that all of its simulations share.
#[derive(Debug, Clone)]
pub struct Experiment<'a> {
    /// The parameters of each simulation.
    pub setup: SimulationSetup,
    /// The requests of the trace, or the requests that were generated with the seeds 1, 2 and so on. A seed
    /// without requests here uses those of seed 1.
    pub jobs: &'a [Vec<TraceRequest>],
    /// Latency limits that a request must meet to count as goodput.
    pub objectives: LatencyObjectives,
    /// Number of seeds, which are 1, 2 and so on. 0 counts as 1.
    pub seeds: u64,
}

/// Results of one routing policy over all seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyOutcome {
    /// Name of the routing policy.
    pub policy: &'static str,
    /// Mean of each metric over the seeds.
    pub mean: RunMetrics,
    /// Standard deviation of the goodput over the seeds.
    pub goodput_spread: f64,
    /// Goodput with each seed.
    pub goodputs: Vec<f64>,
    /// Mean of each metric of the sessions. `None`: the traffic has no closed-loop sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<SessionMetrics>,
}

/// Lowest and highest speed that a calibration tries.
const CALIBRATION_SPEED_RANGE: Range<f64> = 0.01..100.0;
/// Number of bisections of the logarithm of the speed range. The resulting speed is exact to about 0.1 %.
const CALIBRATION_STEPS: u32 = 13;

impl Experiment<'_> {
    /// Runs every policy with every seed. `on_progress` is called, on any thread, for every request that
    /// arrives.
    pub fn run(&self, kinds: &[RouterKind], on_progress: &(dyn Fn() + Sync)) -> Vec<PolicyOutcome> {
        let seeds = self.seeds.max(1);
        let runs: Vec<(RouterKind, u64)> = kinds
            .iter()
            .flat_map(|kind| (1..=seeds).map(|seed| (*kind, seed)))
            .collect();
        let figures = parallel_map(&runs, |(kind, seed)| {
            self.run_once(*kind, *seed, on_progress)
        });
        let by_kind = kinds.iter().zip(figures.chunks(seeds as usize));
        by_kind
            .map(|(kind, figures)| PolicyOutcome::from_runs(kind.name(), figures))
            .collect()
    }

    /// The speed of the trace at which round-robin routing, without admission control, has a given goodput with
    /// seed 1, exact to about 0.1 %. The bisection assumes that the goodput falls as the load grows.
    pub fn calibrate(&self, goodput: f64, on_progress: &(dyn Fn() + Sync)) -> f64 {
        let kind = RouterKind::Shipped(PolicyKind::RoundRobin);
        bisect_speed(CALIBRATION_SPEED_RANGE, CALIBRATION_STEPS, |speed| {
            let setup = SimulationSetup {
                speed,
                admission: None,
                ..self.setup.clone()
            };
            let (figures, _) = Self {
                setup,
                ..self.clone()
            }
            .run_once(kind, 1, on_progress);
            figures.goodput > goodput
        })
    }

    fn run_once(
        &self,
        kind: RouterKind,
        seed: u64,
        on_progress: &(dyn Fn() + Sync),
    ) -> (RunMetrics, Option<SessionMetrics>) {
        let own = self.jobs.get((seed - 1) as usize).or(self.jobs.first());
        let jobs = own.map_or(&[][..], Vec::as_slice);
        let results = Simulation::new(&self.setup, jobs, kind, seed).run(on_progress);
        let sessions = SessionMetrics::new(jobs, &results.served, &self.objectives);
        (results.figures(&self.objectives), sessions)
    }
}

/// The speed in a range up to which a condition holds, by bisections of the logarithm of the speed.
pub(super) fn bisect_speed(speeds: Range<f64>, steps: u32, holds: impl Fn(f64) -> bool) -> f64 {
    let mut low = speeds.start.ln();
    let mut high = speeds.end.ln();
    for _ in 0..steps {
        let middle = f64::midpoint(low, high);
        if holds(middle.exp()) {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high).exp()
}

impl PolicyOutcome {
    fn from_runs(policy: &'static str, runs: &[(RunMetrics, Option<SessionMetrics>)]) -> Self {
        let mean = |read: fn(&RunMetrics) -> f64| mean_of(runs, |(figures, _)| read(figures));
        let goodputs: Vec<f64> = runs.iter().map(|(figures, _)| figures.goodput).collect();
        let sessions: Vec<SessionMetrics> =
            runs.iter().filter_map(|(_, sessions)| *sessions).collect();
        Self {
            policy,
            mean: RunMetrics {
                goodput: mean(|figures| figures.goodput),
                ttft_p50: mean(|figures| figures.ttft_p50),
                ttft_p99: mean(|figures| figures.ttft_p99),
                tpot_p50: mean(|figures| figures.tpot_p50),
                tpot_p99: mean(|figures| figures.tpot_p99),
                tokens_per_second: mean(|figures| figures.tokens_per_second),
                cached: mean(|figures| figures.cached),
                preemptions: mean(|figures| figures.preemptions),
                imbalance: mean(|figures| figures.imbalance),
            },
            goodput_spread: spread(&goodputs).1,
            goodputs,
            sessions: SessionMetrics::mean(&sessions),
        }
    }
}

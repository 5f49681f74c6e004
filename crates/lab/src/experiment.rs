//! Many runs of one setup: every policy with every seed, side by side on all cores.

use super::router::RouterKind;
use super::score::{Figures, Objectives, spread};
use super::trace::Job;
use super::world::{Setup, World};
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// What is tried.
#[derive(Debug, Clone)]
pub struct Experiment<'a> {
    /// The world.
    pub setup: Setup,
    /// The traffic.
    pub jobs: &'a [Job],
    /// When a request is served well.
    pub objectives: Objectives,
    /// How many seeds; the first is 1.
    pub seeds: u64,
}

/// What came of one policy over all seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The policy.
    pub policy: &'static str,
    /// Means.
    pub mean: Figures,
    /// Standard deviation of the goodput.
    pub goodput_spread: f64,
    /// The goodput with each seed.
    pub goodputs: Vec<f64>,
}

/// Lowest and highest speed that calibration tries.
const SPEEDS: (f64, f64) = (0.01, 100.0);
/// Halvings of that range, in logarithms: to about a thousandth.
const HALVINGS: u32 = 13;

impl Experiment<'_> {
    /// Runs every policy with every seed. `on_progress` hears of every request that is sent, on
    /// any thread.
    pub fn run(&self, kinds: &[RouterKind], on_progress: &(dyn Fn() + Sync)) -> Vec<Outcome> {
        let seeds = self.seeds.max(1);
        let runs: Vec<(RouterKind, u64)> =
            kinds.iter().flat_map(|kind| (1..=seeds).map(|seed| (*kind, seed))).collect();
        let next = AtomicUsize::new(0);
        let done = Mutex::new(vec![None; runs.len()]);
        let work = || {
            while let Some((kind, seed)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let figures = self.once(*kind, *seed, on_progress);
                let index = runs.iter().position(|run| *run == (*kind, *seed)).unwrap_or(0);
                done.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(figures);
            }
        };
        thread::scope(|scope| {
            let threads = thread::available_parallelism().map_or(1, usize::from);
            for _ in 0..threads.min(runs.len()) {
                scope.spawn(work);
            }
        });
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let figures: Vec<Figures> = done.into_iter().flatten().collect();
        let of_kind = kinds.iter().zip(figures.chunks(seeds as usize));
        of_kind.map(|(kind, figures)| Outcome::of(kind.name(), figures)).collect()
    }

    /// The speed at which a policy's goodput is `goodput`, within a thousandth or so: of the first
    /// seed, by bisection. Goodput falls as load grows.
    pub fn calibrate(
        &self,
        kind: RouterKind,
        goodput: f64,
        on_progress: &(dyn Fn() + Sync),
    ) -> f64 {
        let (mut low, mut high) = (SPEEDS.0.ln(), SPEEDS.1.ln());
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(low, high);
            let setup = Setup { speed: middle.exp(), ..self.setup.clone() };
            let figures = Self { setup, ..self.clone() }.once(kind, 1, on_progress);
            if figures.goodput > goodput { low = middle } else { high = middle }
        }
        f64::midpoint(low, high).exp()
    }

    fn once(&self, kind: RouterKind, seed: u64, on_progress: &(dyn Fn() + Sync)) -> Figures {
        let world = World::new(&self.setup, self.jobs, kind, seed);
        world.run(|_| on_progress()).figures(&self.objectives)
    }
}

impl Outcome {
    fn of(policy: &'static str, runs: &[Figures]) -> Self {
        let mean = |read: fn(&Figures) -> f64| spread(&runs.iter().map(read).collect::<Vec<_>>()).0;
        let goodputs: Vec<f64> = runs.iter().map(|figures| figures.goodput).collect();
        Self {
            policy,
            mean: Figures {
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
        }
    }
}

//! The standings of a tournament: goodput and regret (distance to the best goodput) of each router over all
//! cells (setups).

use super::{CellResult, RouterScore};
use crate::routers::RouterKind;
use serde::Serialize;

/// The results of one router over all cells (setups of the tournament). Regrets are in percentage points of
/// goodput.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// Name of the router.
    pub router: &'static str,
    /// Mean goodput of the router over all cells (setups), from 0 to 1.
    pub goodput: f64,
    /// Mean regret over all cells: how far the goodput is below that of the best router.
    pub regret: f64,
    /// Share of the cells (setups) in which the regret is at most one percentage point.
    pub within_one: f64,
    /// Share of the cells (setups) in which the regret is at most three percentage points.
    pub within_three: f64,
    /// Maximum regret in a cell (setup).
    pub worst: f64,
    /// Goodput of the first router minus the goodput of this router in percentage points: the mean over the
    /// cells, and the bounds of its 95 % interval.
    pub behind_first: [f64; 3],
    /// Mean of the 99th percentiles of the TTFT in seconds.
    pub ttft_p99: f64,
    /// Mean of [`RouterScore::wasted`] over all cells.
    pub wasted: f64,
    /// Mean of [`RouterScore::fairness`] over all cells.
    pub fairness: f64,
}

const BOOTSTRAP_SAMPLES: usize = 2_000;

/// The standings of the routers, sorted by mean goodput, the best first. The first router of `kinds` is the
/// one with which the others are compared.
pub fn standings(results: &[CellResult], kinds: &[RouterKind]) -> Vec<Standing> {
    let first = kinds.first().map_or("", |kind| kind.name());
    let mut standings: Vec<Standing> = kinds
        .iter()
        .map(|kind| Standing::new(results, kind.name(), first))
        .collect();
    standings.sort_by(|a, b| b.goodput.total_cmp(&a.goodput));
    standings
}

impl Standing {
    fn new(results: &[CellResult], router: &'static str, first: &str) -> Self {
        let regrets: Vec<f64> = results
            .iter()
            .filter_map(|result| result.regret(router))
            .collect();
        let count = regrets.len().max(1) as f64;
        let within =
            |points: f64| regrets.iter().filter(|regret| **regret <= points).count() as f64 / count;
        let mean = |read: fn(&RouterScore) -> f64| {
            results
                .iter()
                .filter_map(|result| result.mean(router, read))
                .sum::<f64>()
                / count
        };
        let behind = |result: &CellResult| {
            let goodput = |router| result.mean(router, |score| score.goodput);
            Some((goodput(first)? - goodput(router)?) * 100.0)
        };
        let behind: Vec<f64> = results.iter().filter_map(behind).collect();
        Self {
            router,
            goodput: mean(|score| score.goodput),
            regret: regrets.iter().sum::<f64>() / count,
            within_one: within(1.0),
            within_three: within(3.0),
            worst: regrets.iter().copied().fold(0.0, f64::max),
            behind_first: bootstrap(&behind),
            ttft_p99: mean(|score| score.ttft_p99),
            wasted: mean(|score| score.wasted),
            fairness: mean(|score| score.fairness),
        }
    }
}

/// The mean of the values, and the bounds of its 95 % bootstrap interval.
fn bootstrap(values: &[f64]) -> [f64; 3] {
    let count = values.len().max(1) as f64;
    let mut random = fastrand::Rng::with_seed(1);
    let mut sample = || {
        let drawn = values.iter().map(|_| values[random.usize(..values.len())]);
        drawn.sum::<f64>() / count
    };
    let mut means: Vec<f64> = (0..BOOTSTRAP_SAMPLES).map(|_| sample()).collect();
    means.sort_by(f64::total_cmp);
    let at = |share: f64| means[(share * BOOTSTRAP_SAMPLES as f64) as usize];
    [values.iter().sum::<f64>() / count, at(0.025), at(0.975)]
}

#[cfg(test)]
mod tests {
    use super::super::Cell;
    use super::*;
    use crate::routers::ReferenceRouter;
    use std::collections::BTreeMap;
    use tokenweir_routing::PolicyKind;

    #[test]
    fn regret_is_the_difference_to_the_best() {
        let score = |goodput| {
            vec![RouterScore {
                goodput,
                ..RouterScore::default()
            }]
        };
        let scores = [
            ("round_robin", 0.90),
            ("lmetric", 0.95),
            ("exact_state", 0.99),
        ];
        let result = CellResult {
            cell: Cell::all(&[0.8])[0],
            speed: 1.0,
            seconds: 1.0,
            bound: None,
            scores: BTreeMap::from(scores.map(|(name, goodput)| (name, score(goodput)))),
        };
        let kinds = [
            RouterKind::Shipped(PolicyKind::RoundRobin),
            RouterKind::Reference(ReferenceRouter::LMetric),
        ];
        let standings = standings(&[result], &kinds);
        assert_eq!(
            (standings[0].router, standings[1].router),
            ("lmetric", "round_robin")
        );
        assert!((standings[1].regret - 5.0).abs() < 1e-9 && standings[0].regret < 1e-9);
        assert!((standings[0].behind_first[1] + 5.0).abs() < 1e-9);
        assert!(standings[1].within_three < 0.5 && standings[0].within_one > 0.5);
    }
}

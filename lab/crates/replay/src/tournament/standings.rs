//! The standings of a tournament: mean goodput and regret of each router over all cells.

use super::CellResult;
use crate::routers::RouterKind;
use serde::Serialize;

/// The regrets of one router over all cells, in points of goodput.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// Name of the router.
    pub router: &'static str,
    /// Mean goodput, from 0 to 1.
    pub goodput: f64,
    /// Mean regret.
    pub regret: f64,
    /// Share of the cells with a regret of at most one point.
    pub within_one: f64,
    /// Share of the cells with a regret of at most three points.
    pub within_three: f64,
    /// Greatest regret.
    pub worst: f64,
}

/// The standings of the routers, the best mean goodput first.
pub fn standings(results: &[CellResult], kinds: &[RouterKind]) -> Vec<Standing> {
    let mut standings: Vec<Standing> =
        kinds.iter().map(|kind| Standing::new(results, kind.name())).collect();
    standings.sort_by(|a, b| b.goodput.total_cmp(&a.goodput));
    standings
}

impl Standing {
    fn new(results: &[CellResult], router: &'static str) -> Self {
        let regrets: Vec<f64> = results.iter().filter_map(|result| result.regret(router)).collect();
        let count = regrets.len().max(1) as f64;
        let within =
            |points: f64| regrets.iter().filter(|regret| **regret <= points).count() as f64 / count;
        let goodputs = results.iter().filter_map(|result| Some(result.scores.get(router)?.goodput));
        Self {
            router,
            goodput: goodputs.sum::<f64>() / count,
            regret: regrets.iter().sum::<f64>() / count,
            within_one: within(1.0),
            within_three: within(3.0),
            worst: regrets.iter().copied().fold(0.0, f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, RouterScore};
    use super::*;
    use std::collections::BTreeMap;
    use tokenweir_core::routing::PolicyKind;

    #[test]
    fn the_best_router_has_no_regret_and_the_others_have_the_difference() {
        let score = |goodput| RouterScore {
            goodput,
            prediction_ratio: f64::NAN,
            cached: 0.0,
            ttft_p99: 0.0,
        };
        let result = CellResult {
            cell: Cell::draw(1, 1),
            rate: 1.0,
            scores: BTreeMap::from([("round_robin", score(0.90)), ("lmetric", score(0.95))]),
        };
        assert_eq!(result.best(), Some("lmetric"));
        let kinds = [RouterKind::Shipped(PolicyKind::RoundRobin), RouterKind::LMetric];
        let standings = standings(&[result], &kinds);
        assert_eq!((standings[0].router, standings[1].router), ("lmetric", "round_robin"));
        assert!((standings[1].regret - 5.0).abs() < 1e-9 && standings[0].regret < 1e-9);
        assert!(standings[1].within_three < 0.5 && standings[0].within_one > 0.5);
    }
}

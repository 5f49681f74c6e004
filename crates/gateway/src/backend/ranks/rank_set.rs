//! The data-parallel ranks of one backend, and the load of each rank.

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::dialect::RankLoad;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_routing::{LoadEstimator, LoadReport, LocalLoad, mix};

/// The data-parallel ranks of one backend.
#[derive(Debug, Default)]
pub struct DataParallelRanks {
    /// Whether `targets` has a value. Routing reads this copy for each candidate.
    are_targets: AtomicFlag,
    /// The ranks among which routing chooses. `None`: the backend decides which rank gets a request.
    targets: ArcSwapOption<Vec<Rank>>,
    /// Whether the backend has refused a rank since its last start.
    pub(in crate::backend) is_refused: AtomicFlag,
}

/// One data-parallel rank.
#[derive(Debug)]
pub(in crate::backend) struct Rank {
    /// The number of the rank on the metrics page.
    pub number: u32,
    /// The value of `X-data-parallel-rank` with which the backend gives a request to the rank.
    pub header: HeaderValue,
    /// The load and the speed of the rank.
    pub estimator: LoadEstimator,
    /// Index of the rank, and the number of ranks.
    pub(in crate::backend) place: RankPlace,
    /// Hash of the name of the backend and of the number of the rank.
    pub(in crate::backend) key: u64,
}

/// The place of a rank among all ranks of its backend, in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend) struct RankPlace {
    pub(in crate::backend) index: usize,
    pub(in crate::backend) count: usize,
}

/// The load of one rank for status pages.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct RankStatus {
    /// The number of the rank on the metrics page of the backend.
    pub rank: u32,
    /// The value of `X-data-parallel-rank` for the rank.
    pub header: String,
    /// Number of requests that this gateway has in progress on the rank.
    pub in_flight: u32,
    /// Prompt tokens that the rank must compute before those of a new request.
    pub backlog_tokens: u64,
}

impl DataParallelRanks {
    /// The ranks. `None`: the backend decides which rank gets a request.
    pub(in crate::backend) fn targets(&self) -> Option<Arc<Vec<Rank>>> {
        if !self.are_targets.get() {
            return None;
        }
        self.targets.load_full()
    }

    /// Number of ranks that are targets of routing.
    pub fn count(&self) -> usize {
        self.targets().map_or(0, |ranks| ranks.len())
    }

    /// Makes ranks targets of routing. `values`: the number of each rank, and its value of the header
    /// `X-data-parallel-rank`.
    pub(in crate::backend) fn begin(
        &self,
        values: &[(u32, u32)],
        backend_key: u64,
        now: Instant,
        horizon: Duration,
    ) {
        let rank = |(index, (number, value)): (usize, &(u32, u32))| Rank {
            number: *number,
            header: HeaderValue::from(*value),
            estimator: LoadEstimator::new(now, horizon),
            place: RankPlace { index, count: values.len() },
            key: mix(backend_key ^ mix(u64::from(*number) + 1)),
        };
        let ranks: Vec<Rank> = values.iter().enumerate().map(rank).collect();
        self.targets.store(Some(Arc::new(ranks)));
        self.are_targets.set(true);
    }

    /// Leaves the choice of a rank to the backend; if `is_refused`, until the backend restarts.
    pub(in crate::backend) fn end(&self, is_refused: bool) {
        self.is_refused.set(is_refused);
        self.are_targets.set(false);
        self.targets.store(None);
    }

    /// Sets the age of a load report at which it has half of its weight in predictions.
    pub(in crate::backend) fn set_horizon(&self, horizon: Duration) {
        self.targets().iter().for_each(|ranks| {
            ranks.iter().for_each(|rank| rank.estimator.set_horizon(horizon));
        });
    }

    /// The load that this gateway puts on each rank, by number.
    pub(in crate::backend) fn local_loads(&self) -> Vec<(u32, LocalLoad)> {
        let loads = |ranks: Arc<Vec<Rank>>| {
            ranks.iter().map(|rank| (rank.number, rank.estimator.local_load())).collect()
        };
        self.targets().map(loads).unwrap_or_default()
    }

    /// Records the loads of a scrape that began at `scraped_at`, and the loads that this gateway put on
    /// the ranks at that time. If the backend has other ranks than before, leaves the choice of a rank
    /// to the backend.
    pub(in crate::backend) fn record(
        &self,
        loads: &[RankLoad],
        local_loads: &[(u32, LocalLoad)],
        scraped_at: Instant,
    ) {
        let Some(ranks) = self.targets() else { return };
        if !ranks.iter().map(|rank| rank.number).eq(loads.iter().map(|load| load.rank)) {
            return self.end(false);
        }
        for (rank, load) in ranks.iter().zip(loads) {
            let local = local_loads.iter().find(|(number, _)| *number == rank.number);
            if let (Some((_, local)), Some(report)) = (local, LoadReport::of(&load.load)) {
                rank.estimator.on_report(&report, local, scraped_at);
            }
        }
    }

    /// The load of each rank for status pages.
    pub fn status(&self) -> Vec<RankStatus> {
        let status = |rank: &Rank| {
            let load = rank.estimator.local_load();
            RankStatus {
                rank: rank.number,
                header: rank.header.to_str().unwrap_or_default().to_owned(),
                in_flight: load.in_flight,
                backlog_tokens: load.backlog,
            }
        };
        self.targets().map(|ranks| ranks.iter().map(status).collect()).unwrap_or_default()
    }
}

//! The data-parallel ranks of one backend, and the load of each rank.

use crate::backend::facets::{BackendFacet, Target, TargetPart};
use arc_swap::ArcSwapOption;
use http::HeaderValue;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_engine::dialect::RankLoad;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_routing::resilience::FailureKind;
use tokenweir_routing::{LoadEstimator, LoadReport, LocalLoad, mix};

/// The data-parallel ranks of one backend.
#[derive(Debug, Default)]
pub struct DataParallelRanks {
    /// Whether the configuration makes ranks targets of routing.
    is_enabled: AtomicFlag,
    /// Whether `targets` has a value. Routing reads this copy for each candidate.
    are_targets: AtomicFlag,
    /// The ranks among which routing chooses. `None`: the backend decides which rank gets a request.
    targets: ArcSwapOption<Vec<Rank>>,
    /// Whether the backend has refused a rank since its last start.
    pub(crate) is_refused: AtomicFlag,
}

/// One data-parallel rank.
#[derive(Debug)]
pub(crate) struct Rank {
    /// The value of `X-data-parallel-rank` with which the backend gives a request to the rank.
    pub header: HeaderValue,
    /// The load and the speed of the rank.
    pub estimator: LoadEstimator,
    /// The number of the rank on the metrics page, and its place among the ranks.
    pub(crate) part: TargetPart,
    /// Hash of the name of the backend and of the number of the rank.
    pub(crate) key: u64,
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
    /// Sets whether the ranks become targets of routing.
    pub fn enable(&self, is_enabled: bool) {
        self.is_enabled.set(is_enabled);
    }

    /// Whether the configuration makes ranks targets of routing.
    pub(super) fn is_enabled(&self) -> bool {
        self.is_enabled.get()
    }

    /// The ranks. `None`: the backend decides which rank gets a request.
    pub(crate) fn targets(&self) -> Option<Arc<Vec<Rank>>> {
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
    pub(crate) fn begin(
        &self,
        values: &[(u32, u32)],
        backend_key: u64,
        now: Instant,
        horizon: Duration,
    ) {
        let rank = |(index, (number, value)): (usize, &(u32, u32))| Rank {
            header: HeaderValue::from(*value),
            estimator: LoadEstimator::new(now, horizon),
            part: TargetPart { number: *number, index, count: values.len() },
            key: mix(backend_key ^ mix(u64::from(*number) + 1)),
        };
        let ranks: Vec<Rank> = values.iter().enumerate().map(rank).collect();
        self.targets.store(Some(Arc::new(ranks)));
        self.are_targets.set(true);
    }

    /// Leaves the choice of a rank to the backend; if `is_refused`, until the backend restarts.
    pub(crate) fn end(&self, is_refused: bool) {
        self.is_refused.set(is_refused);
        self.are_targets.set(false);
        self.targets.store(None);
    }

    /// The load that this gateway puts on each rank, by number.
    pub(crate) fn local_loads(&self) -> Vec<(u32, LocalLoad)> {
        let loads = |ranks: Arc<Vec<Rank>>| {
            ranks.iter().map(|rank| (rank.part.number, rank.estimator.local_load())).collect()
        };
        self.targets().map(loads).unwrap_or_default()
    }

    /// Records the loads of a scrape that began at `scraped_at`, and the loads that this gateway put on
    /// the ranks at that time. If the backend has other ranks than before, leaves the choice of a rank
    /// to the backend.
    pub(crate) fn record(
        &self,
        loads: &[RankLoad],
        local_loads: &[(u32, LocalLoad)],
        scraped_at: Instant,
    ) {
        let Some(ranks) = self.targets() else { return };
        if !ranks.iter().map(|rank| rank.part.number).eq(loads.iter().map(|load| load.rank)) {
            return self.end(false);
        }
        for (rank, load) in ranks.iter().zip(loads) {
            let local = local_loads.iter().find(|(number, _)| *number == rank.part.number);
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
                rank: rank.part.number,
                header: rank.header.to_str().unwrap_or_default().to_owned(),
                in_flight: load.in_flight,
                backlog_tokens: load.backlog,
            }
        };
        self.targets().map(|ranks| ranks.iter().map(status).collect()).unwrap_or_default()
    }
}

impl BackendFacet for DataParallelRanks {
    fn adopt_settings(&self, other: &Self) {
        self.is_enabled.set(other.is_enabled.get());
    }

    fn set_horizon(&self, horizon: Duration) {
        let Some(ranks) = self.targets() else { return };
        for rank in ranks.iter() {
            rank.estimator.set_horizon(horizon);
        }
    }

    fn forget_server(&self) {
        self.end(false);
    }

    /// Leaves the choice of the rank to a backend that refused a rank, until it restarts.
    fn on_failure(&self, kind: FailureKind, id: &BackendId) -> bool {
        if kind != FailureKind::RankRefused {
            return false;
        }
        if self.count() > 0 {
            tracing::warn!(backend = %id, "the backend refuses a data-parallel rank: it chooses the rank of each request itself");
        }
        self.end(true);
        true
    }

    fn visit_targets(&self, mut visit: impl FnMut(&Target<'_>)) -> bool {
        let Some(ranks) = self.targets() else { return false };
        for rank in ranks.iter() {
            visit(&Target { estimator: &rank.estimator, key: rank.key, part: Some(rank.part) });
        }
        true
    }
}

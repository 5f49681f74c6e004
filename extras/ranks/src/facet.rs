//! The data-parallel ranks of one backend.

use tokenweir_engine::address::BackendId;
use tokenweir_gateway::backend::facets::{BackendFacet, BackendTargets, PartialTarget};
use tokenweir_gateway::status::StatusBlocks;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_routing::resilience::FailureKind;

/// The data-parallel ranks of one backend.
#[derive(Debug, Default)]
pub struct RankFacet {
    /// Whether the configuration makes ranks targets of routing.
    pub(crate) is_enabled: AtomicFlag,
    /// Whether the backend has refused a rank since it last started. If so, it chooses the ranks itself.
    pub(crate) is_refused: AtomicFlag,
}

/// The data-parallel ranks that are targets of routing. Empty: the backend chooses the rank itself.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Ranks(pub Vec<RankStatus>);

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

impl RankFacet {
    /// The ranks of a backend. `is_enabled`: whether ranks become targets of routing.
    pub fn new(is_enabled: bool) -> Self {
        let facet = Self::default();
        facet.is_enabled.set(is_enabled);
        facet
    }

    /// The load of each rank for status pages.
    pub fn status(targets: &BackendTargets) -> Ranks {
        let status = |rank: &PartialTarget| {
            let load = rank.estimator.local_load();
            RankStatus {
                rank: rank.part.number,
                header: rank.header_value.to_str().unwrap_or_default().to_owned(),
                in_flight: load.in_flight,
                backlog_tokens: load.backlog,
            }
        };
        Ranks(
            targets
                .parts()
                .map(|ranks| ranks.iter().map(status).collect())
                .unwrap_or_default(),
        )
    }
}

impl BackendFacet for RankFacet {
    fn adopt_settings(&self, other: &dyn BackendFacet) {
        if let Some(other) = other.downcast::<Self>() {
            self.is_enabled.set(other.is_enabled.get());
        }
    }

    fn forget_server(&self) {
        self.is_refused.set(false);
    }

    /// Leaves the choice of the rank to a backend that refused a rank, until it restarts.
    fn on_failure(&self, kind: FailureKind, id: &BackendId) -> bool {
        if kind != FailureKind::TargetRefused {
            return false;
        }
        if !self.is_refused.replace(true) {
            tracing::warn!(backend = %id, "the backend refuses a data-parallel rank: it chooses the rank of each request itself");
        }
        true
    }

    fn add_status(&self, targets: &BackendTargets, blocks: &mut StatusBlocks) {
        blocks.add(Self::status(targets));
    }
}

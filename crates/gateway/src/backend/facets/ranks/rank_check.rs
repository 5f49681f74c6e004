//! What the health checker of a backend knows of its data-parallel ranks.

use super::rank_set::DataParallelRanks;
use std::time::Instant;
use tokenweir_engine::dialect::{EngineLoad, RankLoad};
use tokenweir_routing::LocalLoad;

/// What the health checker of a backend knows of its data-parallel ranks.
#[derive(Debug, Default)]
pub(crate) struct RankCheck {
    /// Whether the loads of the ranks are read from the metrics page.
    is_read: bool,
    /// The load that this gateway put on each rank when the scrape began, by the number of the rank.
    local_loads: Vec<(u32, LocalLoad)>,
    /// The loads on the last page, in the order of the numbers of the ranks. Empty: the backend has one rank,
    /// or the loads of ranks are not read.
    pub(crate) page_loads: Vec<RankLoad>,
    /// Time of the next search for the values of `X-data-parallel-rank` with which requests reach each rank.
    /// `None`: at the next check.
    pub(crate) next_search: Option<Instant>,
}

impl RankCheck {
    /// Forgets what another start of the server can change.
    pub(crate) fn reset(&mut self) {
        self.next_search = None;
    }

    pub(crate) fn before_scrape(&mut self, ranks: &DataParallelRanks) {
        self.is_read = ranks.is_enabled();
        self.local_loads = ranks.local_loads();
    }

    /// Reads the loads of the ranks from a metrics page. `None`: the backend answered with an error.
    pub(crate) fn read_page(&mut self, page: Option<(&[u8], &EngineLoad)>) {
        self.page_loads.clear();
        let Some((page, load)) = page else { return };
        let has_ranks = load.engines.is_some_and(|engines| engines > 1.0);
        if self.is_read && has_ranks {
            self.page_loads = RankLoad::read_all(page);
        }
    }

    pub(crate) fn after_scrape(&self, ranks: &DataParallelRanks, scraped_at: Instant) {
        ranks.record(&self.page_loads, &self.local_loads, scraped_at);
    }
}

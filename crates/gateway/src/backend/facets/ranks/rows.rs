//! Status and metrics of data-parallel ranks.

use super::rank_set::RankStatus;
use crate::metric::MetricDescriptor;
use crate::status::StatusBlock;

/// The data-parallel ranks that are targets of routing. Empty: the backend chooses the rank itself.
impl StatusBlock for Vec<RankStatus> {
    const KEY: Option<&'static str> = Some("ranks");
}

/// The metrics of data-parallel ranks.
pub const ROWS: &[MetricDescriptor] = &[MetricDescriptor::of_backend(
    "tokenweir_backend_ranks",
    "Data-parallel ranks of the backend that are targets of routing. No series: the backend chooses the rank itself.",
    |backend| {
        let ranks: &Vec<RankStatus> = backend.blocks.get()?;
        (!ranks.is_empty()).then_some(ranks.len() as f64)
    },
)];

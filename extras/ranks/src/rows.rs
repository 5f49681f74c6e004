//! Status and metrics of data-parallel ranks.

use crate::facet::Ranks;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::StatusBlock;

impl StatusBlock for Ranks {
    const KEY: Option<&'static str> = Some("ranks");
}

/// The metrics of data-parallel ranks.
pub const ROWS: &[MetricDescriptor] = &[of_backend(
    "tokenweir_backend_ranks",
    "Data-parallel ranks of the backend that are targets of routing. No series: the backend chooses the rank itself.",
    |backend| {
        let Ranks(ranks) = backend.blocks.get()?;
        (!ranks.is_empty()).then_some(ranks.len() as f64)
    },
)];

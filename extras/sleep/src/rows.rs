//! Status and metrics of sleep mode.

use crate::facet::SleepCounts;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::StatusBlock;

impl StatusBlock for SleepCounts {}

pub(crate) const ROWS: &[MetricDescriptor] = &[row(
    "tokenweir_backend_sleep_changes_total",
    "Times that the gateway woke the engine of the backend, or put it to sleep.",
    &[BACKEND, fixed("to", &["awake", "asleep"])],
    BackendValues(|backend, emit| {
        let counts: SleepCounts = backend.blocks.get_or_default();
        for (to, count) in [("awake", counts.wakes), ("asleep", counts.sleeps)] {
            emit(&[to], (count > 0).then_some(count as f64));
        }
    }),
)];

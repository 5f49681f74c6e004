//! The `process_*` metrics that Prometheus client libraries export for any process. The gateway reads only the
//! start time, whose change shows a restart even if all counters were 0 before it.

use crate::dialect::table::MetricRow;

pub(super) const ROWS: &[MetricRow] = &[MetricRow::max(&["start_time_seconds"], |load| {
    &mut load.started
})];

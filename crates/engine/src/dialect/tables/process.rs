//! The `process_*` metrics that Prometheus client libraries export for any process. Only the start
//! time is read: it shows a restart even if all counters of the backend were 0 before.

use crate::dialect::table::{MetricRow, MetricsDialect};

pub(super) static DIALECT: MetricsDialect = MetricsDialect::new(None, "process", ROWS);

const ROWS: &[MetricRow] = &[MetricRow::max(&["start_time_seconds"], |load| &mut load.started)];

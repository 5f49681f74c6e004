//! The `process_*` metrics that Prometheus client libraries export for any process. Only the start
//! time is read: it shows a restart even if the backend had not counted anything before.

use crate::dialect::table::{Aggregation, MetricRow, MetricsDialect, ValueSource};

pub(super) static DIALECT: MetricsDialect = MetricsDialect::new(None, "process", ROWS);

const ROWS: &[MetricRow] =
    &[MetricRow::number(&["start_time_seconds"], Aggregation::Max, ValueSource::Value, |load| {
        &mut load.started
    })];

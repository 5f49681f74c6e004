//! Metrics of the gateway process: CPU time, memory and open files.

use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricType;
use tokenweir_protocol::metric_kind::MetricKind;

/// Calls `emit` with the name, the help text, the kind and the value of each `process_*` metric.
pub(super) fn read(process: &ProcessCollector, emit: &mut dyn FnMut(&str, &str, MetricKind, f64)) {
    for family in process.collect() {
        let is_counter = family.get_field_type() == MetricType::COUNTER;
        let kind = if is_counter {
            MetricKind::Counter
        } else {
            MetricKind::Gauge
        };
        for metric in family.get_metric() {
            let value = if is_counter {
                metric.get_counter().get_value()
            } else {
                metric.get_gauge().get_value()
            };
            emit(family.name(), family.help(), kind, value);
        }
    }
}

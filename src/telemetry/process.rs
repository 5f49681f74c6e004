//! The process itself: CPU time, memory, open files.

use super::metric::Kind;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricType;

/// Tells name, help, kind and value of the `process_*` families.
pub(super) fn read(process: &ProcessCollector, tell: &mut dyn FnMut(&str, &str, Kind, f64)) {
    for family in process.collect() {
        let is_counter = family.get_field_type() == MetricType::COUNTER;
        let kind = if is_counter { Kind::Counter } else { Kind::Gauge };
        for metric in family.get_metric() {
            let (counter, gauge) =
                (metric.get_counter().get_value(), metric.get_gauge().get_value());
            tell(family.name(), family.help(), kind, if is_counter { counter } else { gauge });
        }
    }
}

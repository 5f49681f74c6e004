//! The process itself: CPU time, memory, open files.

use super::exposition::Page;
use super::metric::Kind;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::MetricType;

/// Writes the `process_*` families.
pub(super) fn write(process: &ProcessCollector, page: &mut Page) {
    for family in process.collect() {
        let is_counter = family.get_field_type() == MetricType::COUNTER;
        let kind = if is_counter { Kind::Counter } else { Kind::Gauge };
        page.family(family.name(), family.help(), kind);
        for metric in family.get_metric() {
            let (counter, gauge) =
                (metric.get_counter().get_value(), metric.get_gauge().get_value());
            page.number(family.name(), "", if is_counter { counter } else { gauge });
        }
    }
}

//! Tests of the text formats and of content negotiation.

use super::*;
use crate::telemetry::metrics_registry::exemplar::Exemplar;
use crate::telemetry::metrics_registry::series::format_bucket_labels;
use crate::telemetry::metrics_registry::series::tests::family;
use std::time::Duration;

fn point() -> SeriesPoint {
    let exemplar = Exemplar {
        trace_id: 0xabc,
        span_id: 0x12,
        value: 0.25,
        ended_at: Duration::from_millis(1_700_000_000_042),
    };
    let family = family("tokenweir_queue_wait_seconds");
    for (value, exemplar) in [
        (0.0625, None),
        (0.09375, None),
        (0.09375, None),
        (0.25, Some(exemplar)),
    ] {
        family.writer().record(&["gold"], value, exemplar);
    }
    family.points().remove(0).1
}

fn page(format: ExpositionFormat) -> String {
    let mut page = ExpositionWriter::new(format);
    page.write_header("x_total", "Counted \"a\\b\".", MetricKind::Counter);
    page.write_number("x_total", "", 3.0);
    page.write_header("y_ratio", "Not known.", MetricKind::Gauge);
    page.write_number("y_ratio", "backend=\"a\"", f64::NAN);
    page.write_number("y_ratio", "backend=\"b\"", f64::INFINITY);
    page.write_header("z_seconds", "Long.", MetricKind::Histogram(&[]));
    page.write_histogram(
        "z_seconds",
        "tier=\"\"",
        &format_bucket_labels(&[0.1, 1.0]),
        &point(),
    );
    page.finish()
}

#[test]
fn the_text_format_is_that_of_prometheus() {
    let expected = "\
# HELP x_total Counted \"a\\\\b\".
# TYPE x_total counter
x_total 3
# HELP y_ratio Not known.
# TYPE y_ratio gauge
y_ratio{backend=\"a\"} NaN
y_ratio{backend=\"b\"} +Inf
# HELP z_seconds Long.
# TYPE z_seconds histogram
z_seconds_bucket{tier=\"\",le=\"0.1\"} 3
z_seconds_bucket{tier=\"\",le=\"1.0\"} 4
z_seconds_bucket{tier=\"\",le=\"+Inf\"} 4
z_seconds_sum{tier=\"\"} 0.5
z_seconds_count{tier=\"\"} 4
";
    assert_eq!(page(ExpositionFormat::Text), expected);
}

#[test]
fn openmetrics_has_exemplars_and_eof() {
    let page = page(ExpositionFormat::OpenMetrics);
    assert!(page.starts_with("# HELP x Counted \\\"a\\\\b\\\".\n# TYPE x counter\nx_total 3\n"));
    let trace = format!("trace_id=\"{:0>32}\",span_id=\"{:0>16}\"", "abc", "12");
    let bucket = format!("le=\"1.0\"}} 4 # {{{trace}}} 0.25 1700000000.042\n");
    assert!(page.contains(&bucket), "{page}");
    assert!(page.ends_with("\n# EOF\n"));
}

#[test]
fn bounds_are_formatted_as_by_prometheus() {
    let labels = format_bucket_labels(&[0.000_01, 0.000_025, 0.0001, 0.002_5, 0.5, 1.0, 1920.0]);
    assert_eq!(
        labels,
        [
            "1e-05", "2.5e-05", "0.0001", "0.0025", "0.5", "1.0", "1920.0", "+Inf"
        ]
    );
}

#[test]
fn the_largest_q_selects_the_format() {
    let open = "application/openmetrics-text";
    let prometheus_3 = format!(
        "{open};version=1.0.0;escaping=allow-utf-8;q=0.6,{open};version=0.0.1;q=0.5,\
         text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
    );
    for accept in [
        prometheus_3,
        format!(
            "{open}; version=1.0.0,{open};version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        ),
        open.to_owned(),
        "Application/OpenMetrics-Text; Version=\"1.0.0\"".to_owned(),
    ] {
        assert_eq!(
            ExpositionFormat::accepted(&accept, true),
            ExpositionFormat::OpenMetrics,
            "{accept}"
        );
    }
    for accept in [
        String::new(),
        "*/*".to_owned(),
        "text/html,*/*;q=0.8".to_owned(),
        format!("{open};q=0"),
        format!("{open};q=much"),
        format!("{open};version=0.0.1"),
        format!("{open};version=2.0.0"),
        format!("{open};q=0.5,text/plain"),
        ";;,=,".to_owned(),
    ] {
        assert_eq!(
            ExpositionFormat::accepted(&accept, true),
            ExpositionFormat::Text,
            "{accept}"
        );
    }
}

#[test]
fn protobuf_must_be_offered_and_accepted() {
    let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily";
    let text = "text/plain;version=0.0.4;q=0.5";
    for (accept, is_offered, expected) in [
        (
            format!("{protobuf};encoding=delimited,{text}"),
            true,
            ExpositionFormat::Protobuf,
        ),
        (
            format!("{protobuf};encoding=delimited;q=0.6,{text}"),
            true,
            ExpositionFormat::Protobuf,
        ),
        (
            format!("{protobuf};encoding=delimited;q=0.4,{text}"),
            true,
            ExpositionFormat::Text,
        ),
        (
            format!("{protobuf};encoding=delimited,{text}"),
            false,
            ExpositionFormat::Text,
        ),
        (
            format!("{protobuf};encoding=text,{text}"),
            true,
            ExpositionFormat::Text,
        ),
        (
            format!("application/vnd.google.protobuf,{text}"),
            true,
            ExpositionFormat::Text,
        ),
    ] {
        assert_eq!(
            ExpositionFormat::accepted(&accept, is_offered),
            expected,
            "{accept}"
        );
    }
}

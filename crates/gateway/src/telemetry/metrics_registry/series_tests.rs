//! Tests of label rendering, creation order and exemplars.

use super::*;
use crate::telemetry::catalog;
use proptest::prelude::*;
use std::time::Duration;
use tokenweir_protocol::histogram::OutputGapHistogram;
use tokenweir_request::record::fixtures::streamed;

pub(in crate::telemetry::metrics_registry) fn family(name: &str) -> MetricFamily {
    let row = catalog::rows().find(|row| row.name == name).unwrap();
    MetricFamily::new(row, BucketBounds::from_slice(&[0.1, 1.0]), None)
}

fn exemplar(value: f64) -> Exemplar {
    Exemplar {
        value,
        ..Exemplar::from_record(&streamed()).unwrap()
    }
}

/// Decodes a label value that was escaped for the metrics page.
fn unescape_label_value(text: &str) -> String {
    let mut characters = text.chars();
    let decode = || match characters.next()? {
        '\\' => characters
            .next()
            .map(|escaped| if escaped == 'n' { '\n' } else { escaped }),
        other => Some(other),
    };
    std::iter::from_fn(decode).collect()
}

proptest! {
    #[test]
    fn escaped_label_values_stay_on_one_line(value in "[a\"\\\\\n\r\t\0{},=\u{7f}\u{85}\u{2028}é]{0,12}") {
        let family = family("tokenweir_queue_wait_seconds");
        let text = family.render_labels(&[&value]);
        prop_assert!(!text.contains('\n'));
        let inner = text.strip_prefix("tier=\"").unwrap().strip_suffix('"').unwrap();
        prop_assert_eq!(unescape_label_value(inner), value);
    }
}

#[test]
fn labels_are_in_alphabetical_order() {
    let family = family("tokenweir_tokens_total");
    let text = family.render_labels(&["tiny", "input", "exact", "gold"]);
    assert_eq!(
        text,
        r#"gen_ai_request_model="tiny",source="exact",tier="gold",type="input""#
    );
}

#[test]
fn equal_concatenations_are_different_series() {
    let family = family("tokenweir_request_terminations_total");
    for labels in [["ab", "c"], ["a", "bc"], ["", "abc"]] {
        family.writer().record(&labels, 1.0, None);
        family.writer().record(&labels, 1.0, None);
    }
    let sums: Vec<f64> = family.points().iter().map(|(_, point)| point.sum).collect();
    assert!(family.points().len() == 3 && sums.iter().all(|sum| (sum - 2.0).abs() < 1e-9));
}

#[test]
fn each_histogram_bucket_retains_only_its_latest_exemplar() {
    let family = family("tokenweir_queue_wait_seconds");
    for round in 0..1_000 {
        for value in [0.05, 0.5, 5.0] {
            let value = value + f64::from(round) * 1e-6;
            family
                .writer()
                .record(&["gold"], value, Some(exemplar(0.0)));
        }
    }
    family.writer().record(&["gold"], 0.06, None);
    let (_, point) = family.points().remove(0);
    assert_eq!(point.counts[..], [1_001, 1_000, 1_000]);
    let exemplars = point.exemplars().iter();
    let last: Vec<_> = exemplars
        .map(|(bucket, exemplar)| (*bucket, exemplar.value))
        .collect();
    assert_eq!(last, [(0, 0.050_999), (1, 0.500_999), (2, 5.000_999)]);
}

#[test]
fn the_largest_value_has_the_exemplar() {
    let family = family("tokenweir_inter_chunk_latency_seconds");
    let mut gaps = OutputGapHistogram::with_bounds(&family.bounds);
    gaps.record_duration_n(Duration::from_millis(20), 15);
    gaps.record_duration_n(Duration::from_millis(700), 1);
    family
        .writer()
        .record_histogram(&["tiny", "vllm-0"], &gaps.snapshot(), Some(exemplar(0.0)));
    let (_, point) = family.points().remove(0);
    assert_eq!(
        (&point.counts[..], point.exemplars()[0].0),
        (&[15, 1, 0][..], 1)
    );
    assert!((point.exemplars()[0].1.value - 0.7).abs() < 1e-9);
}

#[test]
fn series_keep_the_order_of_creation() {
    let family = family("tokenweir_queue_wait_seconds");
    let tiers: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    for tier in tiers.iter().chain(&tiers) {
        family.writer().record(&[tier], 1.0, None);
    }
    family.retain("tier", |tier| tier != "7");
    family.writer().record(&["7"], 1.0, None);
    let tiers_in_snapshot: Vec<String> = family
        .points()
        .iter()
        .flat_map(|(labels, _)| labels.values().map(str::to_owned))
        .collect();
    let others = tiers.iter().filter(|tier| *tier != "7");
    assert!(
        tiers_in_snapshot.iter().eq(others.chain([&tiers[7]])),
        "{tiers_in_snapshot:?}"
    );
}

//! What a page may be made of, whatever label values are; and what exemplars take.

use super::*;
use crate::telemetry::catalog;
use proptest::prelude::*;
use std::time::Duration;
use tokenweir_core::record::RequestRecord;
use tokenweir_core::record::sample::streamed;
use tokenweir_core::spread::Gaps;

fn family(name: &str) -> Family {
    let row = catalog::rows().find(|row| row.name == name).unwrap();
    Family::new(row, Bounds::given(&[0.1, 1.0]))
}

fn exemplar(value: f64) -> Exemplar {
    Exemplar { value, ..Exemplar::of(&streamed()).unwrap() }
}

/// Reads a label value back, as the formats define it.
fn unescaped(text: &str) -> String {
    let mut characters = text.chars();
    let mut value = String::new();
    while let Some(character) = characters.next() {
        match (character, character == '\\') {
            (_, true) => value.push(match characters.next().unwrap() {
                'n' => '\n',
                other => other,
            }),
            (other, false) => value.push(other),
        }
    }
    value
}

proptest! {
    #[test]
    fn no_label_value_breaks_its_line(value in "[a\"\\\\\n\r\t\0{},=\u{7f}\u{85}\u{2028}é]{0,12}") {
        let family = family("tokenweir_queue_wait_seconds");
        let text = family.text(&[&value]);
        prop_assert!(!text.contains('\n'));
        let inner = text.strip_prefix("tier=\"").unwrap().strip_suffix('"').unwrap();
        prop_assert_eq!(unescaped(inner), value);
    }
}

#[test]
fn labels_stand_in_the_order_of_their_names_whatever_the_row_says() {
    let family = family("tokenweir_tokens_total");
    let text = family.text(&["tiny", "input", "exact", "gold"]);
    assert_eq!(text, r#"gen_ai_request_model="tiny",source="exact",tier="gold",type="input""#);
}

#[test]
fn labels_that_run_together_to_the_same_text_are_different_series() {
    let family = family("tokenweir_endings_total");
    for labels in [["ab", "c"], ["a", "bc"], ["", "abc"]] {
        family.open().take(&labels, 1.0, None);
        family.open().take(&labels, 1.0, None);
    }
    let sums: Vec<f64> = family.points().iter().map(|(_, point)| point.sum).collect();
    assert!(family.points().len() == 3 && sums.iter().all(|sum| (sum - 2.0).abs() < 1e-9));
}

#[test]
fn each_bucket_keeps_the_last_exemplar_and_no_more() {
    let family = family("tokenweir_queue_wait_seconds");
    for round in 0..1_000 {
        for value in [0.05, 0.5, 5.0] {
            let value = value + f64::from(round) * 1e-6;
            family.open().take(&["gold"], value, Some(exemplar(0.0)));
        }
    }
    family.open().take(&["gold"], 0.06, None);
    let (_, point) = family.points().remove(0);
    assert_eq!(point.counts[..], [1_001, 1_000, 1_000]);
    let last: Vec<_> = point.exemplars.iter().map(|(bucket, it)| (*bucket, it.value)).collect();
    assert_eq!(last, [(0, 0.050_999), (1, 0.500_999), (2, 5.000_999)]);
}

#[test]
fn many_values_at_once_have_the_exemplar_of_the_largest() {
    let family = family("tokenweir_inter_chunk_seconds");
    let mut gaps = Gaps::with_bounds(family.bounds.clone());
    gaps.add_gap(Duration::from_millis(20), 15);
    gaps.add_gap(Duration::from_millis(700), 1);
    family.open().absorb(&["tiny", "vllm-0"], &gaps.parts(), Some(exemplar(0.0)));
    let (_, point) = family.points().remove(0);
    assert_eq!((&point.counts[..], point.exemplars[0].0), (&[15, 1, 0][..], 1));
    assert!((point.exemplars[0].1.value - 0.7).abs() < 1e-9);
}

#[test]
fn a_request_whose_trace_is_not_kept_stands_for_nothing() {
    let mut record = streamed();
    let exemplar = Exemplar::of(&record).unwrap();
    let [_, inference] = record.spans;
    assert_eq!(
        (exemplar.trace_id, exemplar.span_id),
        (record.trace.clone().unwrap().trace_id, inference)
    );
    record.kept = None;
    assert_eq!(Exemplar::of(&record), None);
    let untraced = RequestRecord { trace: None, ..streamed() };
    assert_eq!(Exemplar::of(&untraced), None);
}

#[test]
fn series_are_told_in_the_order_in_which_they_were_made() {
    let family = family("tokenweir_queue_wait_seconds");
    let tiers: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    for tier in tiers.iter().chain(&tiers) {
        family.open().take(&[tier], 1.0, None);
    }
    family.retain(Label::Tier, |tier| tier != "7");
    family.open().take(&["7"], 1.0, None);
    let told: Vec<String> =
        family.points().iter().flat_map(|(it, _)| it.values().map(str::to_owned)).collect();
    let others = tiers.iter().filter(|tier| *tier != "7");
    assert!(told.iter().eq(others.chain([&tiers[7]])), "{told:?}");
}

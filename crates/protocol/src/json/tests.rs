//! Tests of the JSON scanner: the reported values do not depend on where a document is split.

use super::*;
use crate::test_input::pieces;
use proptest::prelude::*;
use std::borrow::Cow;

/// The reported values as text, and whether the document is complete.
fn scanned_values(paths: &PathTable<&'static str>, pieces: &[&[u8]]) -> (Vec<String>, bool) {
    let mut scanner = JsonScanner::default();
    let mut values = Vec::new();
    for piece in pieces {
        scanner.scan(paths, piece, |signal, value, _| {
            values.push(match value {
                JsonValue::Text(text) => format!("{signal}={:?}", text.decode()),
                JsonValue::Number(raw) => format!("{signal}={}", String::from_utf8_lossy(raw)),
                other => format!("{signal}={other:?}"),
            });
        });
    }
    (values, scanner.is_complete())
}

fn path_table() -> PathTable<&'static str> {
    let choice = [("delta.content", "content"), ("token_ids[]", "token")];
    let document = [
        ("choices[]", "choice"),
        ("usage.total", "total"),
        ("error", "error"),
    ];
    PathTable::new(&[("", &document), ("choices[]", &choice)])
}

#[test]
fn only_named_values_are_reported() {
    let document = br#"{"id":"x","choices":[{"delta":{"role":"a","content":"Hi \"you\""},
        "token_ids":[1,22],"logprobs":{"content":[{"a":[]}]}}],"usage":{"total":12}}"#;
    let (values, is_complete) = scanned_values(&path_table(), &[document]);
    assert!(is_complete);
    assert_eq!(
        values,
        [
            "choice=Object",
            "content=Some(\"Hi \\\"you\\\"\")",
            "token=1",
            "token=22",
            "choice=End { is_empty: false }",
            "total=12"
        ]
    );
}

#[test]
fn a_star_matches_otherwise_unnamed_members() {
    let paths = PathTable::new(&[("", &[("a.b", "named"), ("a.*", "other"), ("*", "outer")])])
        .with_skipped(&["id", "a.c"]);
    let document = br#"{"id":[1],"a":{"b":1,"c":"x","d":{"e":[2]},"f":[ ],"\u0062":2},"z":null}"#;
    let (values, is_complete) = scanned_values(&paths, &[document]);
    assert!(is_complete);
    let expected = [
        "named=1",
        "other=Object",
        "other=End { is_empty: false }",
        "other=Array",
        "other=End { is_empty: true }",
        "named=2",
        "outer=Null",
    ];
    assert_eq!(values, expected);
}

#[test]
fn a_document_can_be_a_number_or_literal() {
    for (document, is_complete) in [
        ("12", true),
        ("-1.5e3", true),
        (" true", true),
        ("null ", true),
        ("tru", false),
        ("", false),
    ] {
        for cut in 0..document.len() {
            let pieces = [&document.as_bytes()[..cut], &document.as_bytes()[cut..]];
            assert_eq!(
                scanned_values(&path_table(), &pieces).1,
                is_complete,
                "{document:?}"
            );
        }
    }
}

#[test]
fn a_long_string_is_truncated_with_its_length() {
    let document = format!(r#"{{"error":"{}"}}"#, "a".repeat(10_000));
    let mut scanner = JsonScanner::default();
    let mut lengths = Vec::new();
    for piece in document.as_bytes().chunks(100) {
        scanner.scan(&path_table(), piece, |_, value, _| {
            let JsonValue::Text(text) = value else {
                panic!("not a text")
            };
            lengths.push((text.len(), text.decode().map(Cow::into_owned)));
        });
    }
    assert_eq!(lengths, [(10_000, None)]);
}

#[test]
fn invalid_json_fails_and_stays_failed() {
    for invalid in [
        "[DONE]",
        "{\"a\" 1}",
        "{]",
        "}",
        "{\"a\":1,}",
        "nul",
        "{\"usage\":{]",
    ] {
        let mut scanner = JsonScanner::default();
        scanner.scan(&path_table(), invalid.as_bytes(), |_, _, _| {});
        assert!(!scanner.is_complete(), "{invalid}");
    }
}

proptest! {
    #[test]
    fn splits_never_change_the_reported_values(
        cuts in proptest::collection::vec(0_usize..200, 0..6),
    ) {
        let document: &[u8] = "{\"choices\":[{\"delta\":{\"content\":\"a\\\\\\\"é\\n\"}},{\"token_ids\":[10,-2.5e3]}],\
            \"x\":[[\"}\\\"\"],{}],\"usage\":{\"total\":null},\"error\":true}".as_bytes();
        let values_of_pieces = scanned_values(&path_table(), &pieces(document, cuts));
        prop_assert_eq!(&values_of_pieces, &scanned_values(&path_table(), &[document]));
        prop_assert!(values_of_pieces.1);
    }

    #[test]
    fn numbers_are_read_as_serde_json_does(total in any::<u64>(), cut in 0_usize..40) {
        let document =
            serde_json::json!({"z": [{"usage": {"total": 1}}], "usage": {"total": total}});
        let bytes = document.to_string().into_bytes();
        let cut = cut.min(bytes.len());
        let (values, is_complete) = scanned_values(&path_table(), &[&bytes[..cut], &bytes[cut..]]);
        prop_assert!(is_complete);
        prop_assert_eq!(values, vec![format!("total={total}")]);
    }

    #[test]
    fn the_scanner_does_not_panic_on_any_input(pieces in proptest::collection::vec(
        proptest::collection::vec(prop_oneof![
            Just(b'{'), Just(b'}'), Just(b'['), Just(b']'), Just(b'"'), Just(b'\\'), Just(b':'),
            Just(b','), Just(b'e'), Just(b'1'), Just(b' '), any::<u8>()
        ], 0..40), 0..6)) {
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        scanned_values(&path_table(), &pieces);
    }
}

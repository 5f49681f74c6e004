//! However a document is cut, the same values are seen.

use super::*;
use proptest::prelude::*;
use std::borrow::Cow;

fn seen(paths: &Paths<&'static str>, pieces: &[&[u8]]) -> (Vec<String>, bool) {
    let mut scanner = Scanner::default();
    let mut seen = Vec::new();
    for piece in pieces {
        scanner.push(paths, piece, |signal, value| {
            seen.push(match value {
                Value::Text(text) => format!("{signal}={:?}", text.decode()),
                Value::Number(raw) => format!("{signal}={}", String::from_utf8_lossy(raw)),
                other => format!("{signal}={other:?}"),
            });
        });
    }
    (seen, scanner.is_complete())
}

fn table() -> Paths<&'static str> {
    Paths::new(&[&[
        ("choices[]", "choice"),
        ("choices[].delta.content", "content"),
        ("choices[].token_ids[]", "token"),
        ("usage.total", "total"),
        ("error", "error"),
    ]])
}

#[test]
fn only_the_named_values_are_reported() {
    let document = br#"{"id":"x","choices":[{"delta":{"role":"a","content":"Hi \"you\""},
        "token_ids":[1,22],"logprobs":{"content":[{"a":[]}]}}],"usage":{"total":12}}"#;
    let (seen, complete) = seen(&table(), &[document]);
    assert!(complete);
    assert_eq!(
        seen,
        [
            "choice=Object",
            "content=Some(\"Hi \\\"you\\\"\")",
            "token=1",
            "token=22",
            "choice=End",
            "total=12"
        ]
    );
}

#[test]
fn an_escaped_name_is_the_name_it_spells() {
    let (seen, _) = seen(&table(), &[br#"{"err\u006fr":{"a":1}}"#]);
    assert_eq!(seen, ["error=Object", "error=End"]);
}

#[test]
fn a_long_text_is_reported_truncated_and_still_measured() {
    let long = format!(r#"{{"error":"{}"}}"#, "a".repeat(10_000));
    let mut scanner = Scanner::default();
    let mut lengths = Vec::new();
    for piece in long.as_bytes().chunks(100) {
        scanner.push(&table(), piece, |_, value| {
            let Value::Text(text) = value else { panic!("not a text") };
            lengths.push((text.len(), text.decode().map(Cow::into_owned)));
        });
    }
    assert_eq!(lengths, [(10_000, None)]);
}

#[test]
fn what_is_not_json_fails_and_stays_failed() {
    for bad in ["[DONE]", "{\"a\" 1}", "{]", "}", "{\"a\":1,}", "nul", "{\"usage\":{]"] {
        let mut scanner = Scanner::default();
        scanner.push(&table(), bad.as_bytes(), |_, _| {});
        assert!(!scanner.is_complete(), "{bad}");
    }
}

proptest! {
    #[test]
    fn splitting_the_document_never_changes_what_is_seen(
        cuts in proptest::collection::vec(0_usize..200, 0..6),
    ) {
        let document: &[u8] = "{\"choices\":[{\"delta\":{\"content\":\"a\\\\\\\"é\\n\"}},{\"token_ids\":[10,-2.5e3]}],\
            \"x\":[[\"}\\\"\"],{}],\"usage\":{\"total\":null},\"error\":true}".as_bytes();
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(document.len())).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts {
            pieces.push(&document[from..cut]);
            from = cut;
        }
        pieces.push(&document[from..]);
        prop_assert_eq!(seen(&table(), &pieces), seen(&table(), &[document]));
        prop_assert!(seen(&table(), &pieces).1);
    }

    #[test]
    fn it_agrees_with_serde_json_about_every_number(total in any::<u64>(), cut in 0_usize..40) {
        let document = serde_json::json!({"z": [{"usage": {"total": 1}}], "usage": {"total": total}});
        let bytes = document.to_string().into_bytes();
        let cut = cut.min(bytes.len());
        let (seen, complete) = seen(&table(), &[&bytes[..cut], &bytes[cut..]]);
        prop_assert!(complete);
        prop_assert_eq!(seen, vec![format!("total={total}")]);
    }

    #[test]
    fn no_input_makes_it_panic(pieces in proptest::collection::vec(
        proptest::collection::vec(prop_oneof![
            Just(b'{'), Just(b'}'), Just(b'['), Just(b']'), Just(b'"'), Just(b'\\'), Just(b':'),
            Just(b','), Just(b'e'), Just(b'1'), Just(b' '), any::<u8>()
        ], 0..40), 0..6)) {
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        seen(&table(), &pieces);
    }
}

//! Fuzz target of the JSON scanner. For any split of a document into pieces, the scanner reports the same
//! values. For every document that `serde_json` parses, the scanner reports the values of that document in
//! their order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Number;
use std::sync::LazyLock;
use tokenweir_fuzz::{Tree, cut};
use tokenweir_protocol::json::{JsonScanner, JsonValue, PathTable};

/// A value that the scanner reports, with copies of its bytes.
#[derive(Debug, PartialEq)]
enum Report {
    Null,
    Bool(bool),
    Number(Vec<u8>),
    /// The length of a string in the document in bytes, and its decoded content if that is short enough to be
    /// buffered.
    Text(usize, Option<String>),
    Object,
    Array,
    End,
}

/// The position of a value in a document: the names on its path, with `None` for each array element.
type Position<'a> = Vec<Option<&'a str>>;

/// The paths that the scanner reports. They cover all kinds: nested paths, paths with a common beginning, and
/// paths of objects, arrays, elements and scalars.
const PATHS: [&str; 11] = [
    "id",
    "model",
    "choices",
    "choices[]",
    "choices[].index",
    "choices[].delta.content",
    "choices[].token_ids[]",
    "usage.prompt_tokens_details.cached_tokens",
    "error",
    "error.code",
    "prompt[][]",
];

/// Maximum raw length in bytes of a string or number that the scanner buffers if it arrives in several
/// pieces.
const MAX_BUFFERED_BYTES: usize = 256;

static TABLE: LazyLock<PathTable<usize>> = LazyLock::new(|| {
    let rows: Vec<(&str, usize)> = PATHS.into_iter().zip(0..).collect();
    PathTable::new(&[("", &rows)])
});

static POSITIONS: LazyLock<Vec<Position<'static>>> = LazyLock::new(|| {
    let steps = |segment: &'static str| {
        let name = segment.trim_end_matches("[]");
        let elements = segment[name.len()..].len() / 2;
        std::iter::once(Some(name)).chain(std::iter::repeat_n(None, elements))
    };
    PATHS
        .map(|path| path.split('.').flat_map(steps).collect())
        .into()
});

fuzz_target!(|input: &[u8]| {
    let Some((document, pieces)) = cut(input) else {
        return;
    };
    let (whole, state) = scan(std::iter::once(document));
    assert_eq!(scan(pieces), (whole, state));
    let Some(tree) = Tree::read(document) else {
        return;
    };
    // The scanner knows the end of a number or of `null`, `true` or `false` at the root only when another
    // byte follows.
    let is_open = matches!(tree, Tree::Null | Tree::Bool(_) | Tree::Number(_));
    assert!(state == (true, false) || (is_open && state == (false, false)));
    agree(document, &tree);
});

/// Scans the pieces of a document. Returns the reported values, each with the index of its path. Then returns
/// whether the document is complete, and whether the scan has failed.
fn scan<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<(usize, Report)>, (bool, bool)) {
    let mut scanner = JsonScanner::default();
    let mut reports = Vec::new();
    for piece in pieces {
        scanner.scan(&TABLE, piece, |path, value, _| {
            let report = match value {
                JsonValue::Null => Report::Null,
                JsonValue::Bool(value) => Report::Bool(value),
                JsonValue::Number(raw) => Report::Number(raw.to_vec()),
                JsonValue::Text(text) => {
                    let buffered = text.decode().filter(|_| text.len() <= MAX_BUFFERED_BYTES);
                    Report::Text(text.len(), buffered.map(Into::into))
                }
                JsonValue::Object => Report::Object,
                JsonValue::Array => Report::Array,
                JsonValue::End { .. } => Report::End,
            };
            reports.push((path, report));
        });
    }
    (reports, (scanner.is_complete(), scanner.has_failed()))
}

/// Checks that the scanner reports every value of the tree whose position is in [`POSITIONS`], in order, and
/// no other value.
fn agree(document: &[u8], tree: &Tree) {
    let mut expected_reports = Vec::new();
    list(tree, &mut Vec::new(), &mut expected_reports);
    let mut expected_reports = expected_reports.into_iter();
    JsonScanner::default().scan(&TABLE, document, |path, value, _| {
        let (expected, tree) = expected_reports
            .next()
            .expect("no more reports than values");
        assert_eq!(path, expected);
        let is_same = match (value, tree) {
            (JsonValue::Null, Some(Tree::Null))
            | (JsonValue::Object, Some(Tree::Object(_)))
            | (JsonValue::Array, Some(Tree::Array(_)))
            | (JsonValue::End { .. }, None) => true,
            (JsonValue::Bool(value), Some(Tree::Bool(expected_value))) => value == *expected_value,
            (JsonValue::Text(text), Some(Tree::Text(expected_value))) => {
                text.decode().as_deref() == Some(expected_value)
            }
            (JsonValue::Number(raw), Some(Tree::Number(expected_value))) => {
                let is_long = raw.len() >= MAX_BUFFERED_BYTES;
                is_long
                    || serde_json::from_slice::<Number>(raw).is_ok_and(|raw| raw == *expected_value)
            }
            _ => false,
        };
        assert!(is_same, "{value:?} is reported instead of {tree:?}");
    });
    assert_eq!(expected_reports.next(), None);
}

/// Adds each value whose position is in [`POSITIONS`] to `expected_reports`, with the index of its path, in
/// the order of the document. `None` stands for the end of an object or array.
fn list<'a>(
    tree: &'a Tree,
    position: &mut Position<'a>,
    expected_reports: &mut Vec<(usize, Option<&'a Tree>)>,
) {
    let path = POSITIONS.iter().position(|known| known == position);
    expected_reports.extend(path.map(|path| (path, Some(tree))));
    match tree {
        Tree::Object(members) => {
            for (name, value) in members {
                position.push(Some(name));
                list(value, position, expected_reports);
                position.pop();
            }
        }
        Tree::Array(elements) => {
            position.push(None);
            elements
                .iter()
                .for_each(|element| list(element, position, expected_reports));
            position.pop();
        }
        _ => return,
    }
    expected_reports.extend(path.map(|path| (path, None)));
}

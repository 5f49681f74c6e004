//! However a document is cut, the scanner reports the same values; and of every document that
//! `serde_json` can read, it reports what stands there, in order.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Number;
use std::sync::LazyLock;
use tokenweir_core::json::{Paths, Scanner, Value};
use tokenweir_fuzz::{Tree, cut};

/// What the scanner reports, kept.
#[derive(Debug, PartialEq)]
enum Report {
    Null,
    Bool(bool),
    Number(Vec<u8>),
    /// Its length as it was written, and what it says if it is short enough to be kept.
    Text(usize, Option<String>),
    Object,
    Array,
    End,
}

/// A place in a document: the names on the way to it, `None` for the elements of an array.
type Place<'a> = Vec<Option<&'a str>>;

/// Every kind of path: under and beside others, of objects, arrays, elements and scalars.
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

/// Longest text or number that is kept when it is cut, in bytes as it was written.
const MAX_KEPT: usize = 256;

static TABLE: LazyLock<Paths<usize>> = LazyLock::new(|| {
    let rows: Vec<(&str, usize)> = PATHS.into_iter().zip(0..).collect();
    Paths::new(&[&rows])
});

static PLACES: LazyLock<Vec<Place<'static>>> = LazyLock::new(|| {
    let steps = |segment: &'static str| {
        let name = segment.trim_end_matches("[]");
        let elements = segment[name.len()..].len() / 2;
        std::iter::once(Some(name)).chain(std::iter::repeat_n(None, elements))
    };
    PATHS.map(|path| path.split('.').flat_map(steps).collect()).into()
});

fuzz_target!(|input: &[u8]| {
    let Some((document, pieces)) = cut(input) else { return };
    let (whole, state) = scan(std::iter::once(document));
    assert_eq!(scan(pieces), (whole, state));
    let Some(tree) = Tree::read(document) else { return };
    // Where a number or a word at the root ends is known only when something follows.
    let is_open = matches!(tree, Tree::Null | Tree::Bool(_) | Tree::Number(_));
    assert!(state == (true, false) || (is_open && state == (false, false)));
    agree(document, &tree);
});

/// What is reported, and whether the document is complete or has failed.
fn scan<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<(usize, Report)>, (bool, bool)) {
    let mut scanner = Scanner::default();
    let mut reports = Vec::new();
    for piece in pieces {
        scanner.push(&TABLE, piece, |path, value| {
            let report = match value {
                Value::Null => Report::Null,
                Value::Bool(value) => Report::Bool(value),
                Value::Number(raw) => Report::Number(raw.to_vec()),
                Value::Text(text) => {
                    let kept = text.decode().filter(|_| text.len() <= MAX_KEPT);
                    Report::Text(text.len(), kept.map(Into::into))
                }
                Value::Object => Report::Object,
                Value::Array => Report::Array,
                Value::End => Report::End,
            };
            reports.push((path, report));
        });
    }
    (reports, (scanner.is_complete(), scanner.is_failed()))
}

/// Every report is of the value that stands next at a place of the table, and none is missing.
fn agree(document: &[u8], tree: &Tree) {
    let mut named = Vec::new();
    list(tree, &mut Vec::new(), &mut named);
    let mut named = named.into_iter();
    Scanner::default().push(&TABLE, document, |path, value| {
        let (expected, tree) = named.next().expect("as many values stand there as are reported");
        assert_eq!(path, expected);
        let is_same = match (value, tree) {
            (Value::Null, Some(Tree::Null))
            | (Value::Object, Some(Tree::Object(_)))
            | (Value::Array, Some(Tree::Array(_)))
            | (Value::End, None) => true,
            (Value::Bool(value), Some(Tree::Bool(known))) => value == *known,
            (Value::Text(text), Some(Tree::Text(known))) => text.decode().as_deref() == Some(known),
            (Value::Number(raw), Some(Tree::Number(known))) => {
                let is_long = raw.len() >= MAX_KEPT;
                is_long || serde_json::from_slice::<Number>(raw).is_ok_and(|raw| raw == *known)
            }
            _ => false,
        };
        assert!(is_same, "{value:?} is reported for {tree:?}");
    });
    assert_eq!(named.next(), None);
}

/// The values at the places of the table, in the order of the document; `None` is the end of an
/// object or array.
fn list<'a>(tree: &'a Tree, place: &mut Place<'a>, named: &mut Vec<(usize, Option<&'a Tree>)>) {
    let path = PLACES.iter().position(|known| known == place);
    named.extend(path.map(|path| (path, Some(tree))));
    match tree {
        Tree::Object(members) => {
            for (name, value) in members {
                place.push(Some(name));
                list(value, place, named);
                place.pop();
            }
        }
        Tree::Array(elements) => {
            place.push(None);
            elements.iter().for_each(|element| list(element, place, named));
            place.pop();
        }
        _ => return,
    }
    named.extend(path.map(|path| (path, None)));
}

//! Of every body that is a JSON object, the peek says what `serde_json` finds in it, and the edits
//! that make it ask for usage, or for a model of another name, change nothing else.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenweir_core::openai::Splice;
use tokenweir_core::openai::request::{Peek, PeekError};
use tokenweir_fuzz::Tree;

/// What a body may have only once.
const ONCE: [&str; 9] = [
    "model",
    "stream",
    "stream_options",
    "stream_options.include_usage",
    "stream_options.continuous_usage_stats",
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "n",
];

/// A name that must be escaped.
const OTHER: &str = "an\"other\\/é\n";

fuzz_target!(|body: &[u8]| {
    let peek = Peek::of(body);
    match Tree::read(body) {
        Some(tree @ Tree::Object(_)) => agree(body, &tree, peek),
        Some(_) => assert_eq!(peek, Err(PeekError::NotObject)),
        // Values that the gateway does not read are the replica's to refuse.
        None => {}
    }
});

fn agree(body: &[u8], tree: &Tree, peek: Result<Peek, PeekError>) {
    let peek = match peek {
        Ok(peek) => peek,
        Err(PeekError::Duplicate(path)) => return assert!(tree.at(path).len() > 1),
        Err(PeekError::WrongType(path)) => {
            let is_fit = |value: &&Tree| matches!(value, Tree::Text(_) | Tree::Null);
            return assert!(!tree.at(path).iter().all(is_fit));
        }
        Err(PeekError::NotText(path)) => {
            return assert!(!matches!(tree.at(path)[..], [Tree::Null]));
        }
        Err(error) => panic!("it is a JSON object: {error}"),
    };
    assert!(ONCE.iter().all(|path| tree.at(path).len() <= 1));
    let expected = Peek {
        model: text(tree, "model").map(Into::into),
        model_slot: peek.model_slot.clone(),
        stream: tree.at("stream") == [&Tree::Bool(true)],
        usage_splice: peek.usage_splice.clone(),
        max_tokens: count(tree, "max_completion_tokens")
            .or_else(|| count(tree, "max_tokens"))
            .or_else(|| count(tree, "max_output_tokens")),
        n: count(tree, "n"),
    };
    assert_eq!(peek, expected);
    assert_eq!(peek.usage_splice.is_some(), peek.stream && can_ask(tree));
    if let Some(splice) = &peek.usage_splice {
        let edited = Splice::apply([splice], body);
        let again = Peek::of(&edited).expect("an edited body is JSON");
        // The name has moved.
        let model_slot = again.model_slot.clone();
        assert_eq!(again, Peek { usage_splice: None, model_slot, ..expected });
        let edited = Tree::read(&edited).expect("an edited body is JSON");
        assert_eq!(edited.at("stream_options.include_usage"), [&Tree::Bool(true)]);
        assert_eq!(without_usage(edited), without_usage(tree.clone()));
    }
    assert_eq!(peek.model_slot.is_some(), peek.model.is_some());
    if let Some(slot) = &peek.model_slot {
        let edited = Splice::apply([&slot.renamed(OTHER)], body);
        let edited = Tree::read(&edited).expect("an edited body is JSON");
        assert_eq!(text(&edited, "model"), Some(OTHER));
        assert_eq!(without_model(edited), without_model(tree.clone()));
    }
}

fn without_model(body: Tree) -> Tree {
    let Tree::Object(mut members) = body else { return body };
    members.retain(|(name, _)| name != "model");
    Tree::Object(members)
}

/// Whether usage is not asked for, in a body that the server will not refuse for its options.
fn can_ask(tree: &Tree) -> bool {
    let is_unset = |path| matches!(tree.at(path)[..], [] | [Tree::Null | Tree::Bool(false)]);
    match tree.at("stream_options")[..] {
        [] | [Tree::Null] => true,
        [Tree::Object(_)] => {
            is_unset("stream_options.include_usage")
                && is_unset("stream_options.continuous_usage_stats")
        }
        _ => false,
    }
}

/// The body without what asks for usage: the member, and the options if they have no other.
fn without_usage(body: Tree) -> Tree {
    let Tree::Object(mut members) = body else { return body };
    for (_, options) in members.iter_mut().filter(|(name, _)| name == "stream_options") {
        if let Tree::Object(options) = options {
            options.retain(|(name, _)| name != "include_usage");
        }
    }
    let is_empty =
        |options: &Tree| matches!(options, Tree::Null) || *options == Tree::Object(vec![]);
    members.retain(|(name, value)| name != "stream_options" || !is_empty(value));
    Tree::Object(members)
}

fn text<'a>(tree: &'a Tree, path: &str) -> Option<&'a str> {
    if let [Tree::Text(text)] = tree.at(path)[..] { Some(text) } else { None }
}

/// The whole number from 0 to 2⁶³ − 1 at a path.
fn count(tree: &Tree, path: &str) -> Option<u64> {
    let [Tree::Number(number)] = tree.at(path)[..] else { return None };
    number.as_u64().filter(|count| i64::try_from(*count).is_ok())
}

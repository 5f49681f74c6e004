//! Fuzz target of the parser of request bodies. For every body that is a JSON object, the fields that the
//! gateway reads equal those that `serde_json` finds. If the gateway adds a usage request or replaces the
//! model name, nothing else in the body changes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenweir_fuzz::Tree;
use tokenweir_protocol::openai::Splice;
use tokenweir_protocol::openai::request_fields::{RequestBodyError, RequestFields};

/// Fields that may occur only once in a body.
const UNIQUE_FIELDS: [&str; 9] = [
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

/// A model name with characters that JSON must escape.
const NAME_TO_ESCAPE: &str = "an\"other\\/é\n";

fuzz_target!(|body: &[u8]| {
    let fields = RequestFields::parse(body);
    match Tree::read(body) {
        Some(tree @ Tree::Object(_)) => check_fields(body, &tree, fields),
        Some(_) => assert_eq!(fields, Err(RequestBodyError::NotObject)),
        // The body is not JSON. The gateway may accept it, because it does not read every value; the backend
        // rejects it.
        None => {}
    }
});

fn check_fields(body: &[u8], tree: &Tree, fields: Result<RequestFields, RequestBodyError>) {
    let fields = match fields {
        Ok(fields) => fields,
        Err(RequestBodyError::DuplicateField(path)) => return assert!(tree.at(path).len() > 1),
        Err(RequestBodyError::WrongType(path)) => {
            let is_fit = |value: &&Tree| matches!(value, Tree::Text(_) | Tree::Null);
            return assert!(!tree.at(path).iter().all(is_fit));
        }
        Err(RequestBodyError::InvalidUnicode(path)) => {
            return assert!(!matches!(tree.at(path)[..], [Tree::Null]));
        }
        Err(error) => panic!("an error for a JSON object: {error}"),
    };
    assert!(UNIQUE_FIELDS.iter().all(|path| tree.at(path).len() <= 1));
    let expected = RequestFields {
        model: text(tree, "model").map(Into::into),
        stream: tree.at("stream") == [&Tree::Bool(true)],
        max_tokens: count(tree, "max_completion_tokens")
            .or_else(|| count(tree, "max_tokens"))
            .or_else(|| count(tree, "max_output_tokens")),
        n: count(tree, "n"),
        ..fields.clone()
    };
    assert_eq!(fields, expected);
    assert_eq!(
        fields.usage_splice.is_some(),
        fields.stream && can_request_usage(tree)
    );
    if let Some(splice) = &fields.usage_splice {
        let edited = Splice::apply([splice], body);
        let again = RequestFields::parse(&edited).expect("an edited body is JSON");
        assert!(again.prompt.parts(&edited).eq(fields.prompt.parts(body)));
        assert_eq!(again.prompt.salt, fields.prompt.salt);
        assert_eq!(control_names(&again), control_names(&fields));
        // The edit moves these fields within the body, so they are taken from the edited body.
        let moved = RequestFields {
            usage_splice: None,
            continuous_usage_splice: again.continuous_usage_splice.clone(),
            model_slot: again.model_slot.clone(),
            prompt: again.prompt.clone(),
            cache_salt: again.cache_salt.clone(),
            controls: again.controls.clone(),
            ..expected
        };
        assert_eq!(again, moved);
        let edited = Tree::read(&edited).expect("an edited body is JSON");
        assert_eq!(
            edited.at("stream_options.include_usage"),
            [&Tree::Bool(true)]
        );
        assert_eq!(without_usage(edited), without_usage(tree.clone()));
    }
    assert_eq!(fields.model_slot.is_some(), fields.model.is_some());
    if let Some(slot) = &fields.model_slot {
        let edited = Splice::apply([&slot.renamed(NAME_TO_ESCAPE)], body);
        let edited = Tree::read(&edited).expect("an edited body is JSON");
        assert_eq!(text(&edited, "model"), Some(NAME_TO_ESCAPE));
        assert_eq!(without_model(edited), without_model(tree.clone()));
    }
}

/// The names of those fields in the request that control the engine.
fn control_names(fields: &RequestFields) -> Vec<&'static str> {
    fields
        .controls
        .iter()
        .map(|used| used.control.name)
        .collect()
}

fn without_model(body: Tree) -> Tree {
    let Tree::Object(mut members) = body else {
        return body;
    };
    members.retain(|(name, _)| name != "model");
    Tree::Object(members)
}

/// Whether the gateway can add a usage request. It can if the body has none, and if the backend accepts the
/// `stream_options` of the body.
fn can_request_usage(tree: &Tree) -> bool {
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

/// The body without its usage request: removes `include_usage`, and `stream_options` if it has no other
/// member.
fn without_usage(body: Tree) -> Tree {
    let Tree::Object(mut members) = body else {
        return body;
    };
    for (_, options) in members
        .iter_mut()
        .filter(|(name, _)| name == "stream_options")
    {
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
    if let [Tree::Text(text)] = tree.at(path)[..] {
        Some(text)
    } else {
        None
    }
}

/// The value at a path of the document, if there is exactly one and it is an integer from 0 to 2⁶³ − 1.
fn count(tree: &Tree, path: &str) -> Option<u64> {
    let [Tree::Number(number)] = tree.at(path)[..] else {
        return None;
    };
    number
        .as_u64()
        .filter(|count| i64::try_from(*count).is_ok())
}

//! The YAML parser: turns a text into a value, or into an error with a position. Only this module depends on
//! the YAML library. It parses a file twice: into an outline with the position of each value, and into the
//! types of the configuration.

use super::error::{ConfigError, Position, ProblemKind};
use super::redaction::ExcerptRedaction;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_saphyr::{
    DuplicateKeyPolicy, Error, Location, MergeKeyPolicy, NonFiniteFloatPolicy, Options, Spanned,
};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use tokenweir_settings::{SecretMistake, visit_scalars};

/// The position of each value, by its path, such as `backends.0.url`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outline(BTreeMap<String, Position>);

/// An entry of a mapping or of a list, or the whole document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: String,
    /// The position of the key or, for an item of a list, of the value.
    pub(crate) start: Position,
    pub(crate) value: Position,
    /// The index of the entry that contains this entry. `None`: this entry is the document.
    pub(crate) parent: Option<usize>,
    pub(crate) is_item: bool,
}

impl Entry {
    /// The entry that contains this entry. `None`: this entry is the document.
    pub(crate) fn parent_in<'e>(&self, entries: &'e [Self]) -> Option<&'e Self> {
        entries.get(self.parent?)
    }
}

/// Returns all entries of a YAML document. Each entry comes after the entry that contains it. A key may occur
/// twice. The error is the number of the first line that is not valid YAML, from 1.
pub(crate) fn entries(text: &str) -> Result<Vec<Entry>, usize> {
    read_entries(text, tolerant_options()).map_err(|error| line_of(&error))
}

/// Returns the values of a YAML document. The error is that of [`entries`].
pub(crate) fn values(text: &str) -> Result<serde_json::Value, usize> {
    serde_saphyr::from_str_with_options(text, tolerant_options()).map_err(|error| line_of(&error))
}

fn tolerant_options() -> Options {
    let mut options = parser_options(LONG_FILE_NODES);
    options.duplicate_keys = DuplicateKeyPolicy::LastWins;
    options
}

fn line_of(error: &Error) -> usize {
    let location = error.location();
    location.map_or(1, |location| location.line() as usize)
}

fn read_entries(text: &str, options: Options) -> Result<Vec<Entry>, Error> {
    let tree: Spanned<YamlNode> = serde_saphyr::from_str_with_options(text, options)?;
    let start = Position::from(tree.referenced);
    let root = Entry {
        path: String::new(),
        start,
        value: start,
        parent: None,
        is_item: false,
    };
    let mut entries = Vec::new();
    push_entries(&mut entries, root, &tree.value);
    Ok(entries)
}

pub(crate) fn child_path(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

pub(crate) fn is_within(path: &str, parent: &str) -> bool {
    let below = path.strip_prefix(parent);
    below.is_some_and(|below| below.is_empty() || below.starts_with('.'))
}

fn push_entries(entries: &mut Vec<Entry>, entry: Entry, node: &YamlNode) {
    let path = entry.path.clone();
    let parent = Some(entries.len());
    entries.push(entry);
    for (index, YamlChild { key, value }) in node.0.iter().enumerate() {
        let index = index.to_string();
        let name = key.as_ref().map_or(&index, |key| &key.value);
        let start = key.as_ref().map_or(value.referenced, |key| key.referenced);
        let child = Entry {
            path: child_path(&path, name),
            start: start.into(),
            value: value.referenced.into(),
            parent,
            is_item: key.is_none(),
        };
        push_entries(entries, child, &value.value);
    }
}

/// The entry to which an error at a position belongs: the entry whose key or value begins there or, without
/// one, the last entry before the position. `None`: the error is about the document.
pub(crate) fn entry_at(entries: &[Entry], position: Position, kind: ProblemKind) -> Option<&Entry> {
    let place = (position.line, position.column);
    let at = |of: Position| (of.line, of.column) == place;
    let of_value = entries.iter().rfind(|entry| at(entry.value));
    let of_key = entries.iter().rfind(|entry| at(entry.start));
    // For a missing required key, the parser's error has the position of another key of the mapping.
    let of_mapping = of_key.and_then(|entry| entry.parent_in(entries));
    // In block notation, a mapping and its first key begin at the same position. So the kind of problem decides
    // to which of them the error belongs.
    let found = match kind {
        ProblemKind::UnknownKey | ProblemKind::DuplicateKey => of_key.or(of_value),
        ProblemKind::MissingKey => of_value.or(of_mapping),
        ProblemKind::UnreadableFile | ProblemKind::Other => of_value.or(of_key),
    };
    let is_before = |entry: &&Entry| (entry.start.line, entry.start.column) <= place;
    let found = found.or_else(|| entries.iter().rfind(is_before));
    found.filter(|entry| entry.parent.is_some())
}

/// Parses one document. `file` is only for error messages.
pub(crate) fn parse<T: for<'de> Deserialize<'de>>(
    text: &str,
    file: &Path,
) -> Result<(T, Outline), ConfigError> {
    let outline = parse_outline(text, file, MAX_NODES)?;
    let options = parser_options(MAX_NODES);
    let value = serde_saphyr::from_str_with_options(text, options);
    let value = value.map_err(|error: Error| to_config_error(&error, text, file))?;
    Ok((value, outline))
}

/// Parses one document with possibly many values.
pub(crate) fn parse_long<T: for<'de> Deserialize<'de>>(
    text: &str,
    file: &Path,
) -> Result<T, ConfigError> {
    let parsed = serde_saphyr::from_str_with_options(text, parser_options(LONG_FILE_NODES));
    parsed.map_err(|error: Error| to_config_error(&error, text, file))
}

/// The outline of a document for [`parse_long`].
pub(crate) fn long_outline(text: &str, file: &Path) -> Result<Outline, ConfigError> {
    parse_outline(text, file, LONG_FILE_NODES)
}

fn parse_outline(text: &str, file: &Path, max_nodes: usize) -> Result<Outline, ConfigError> {
    let entries = read_entries(text, parser_options(max_nodes));
    let entries = entries.map_err(|error| to_config_error(&error, text, file))?;
    let positions = entries.into_iter().map(|entry| (entry.path, entry.value));
    Ok(Outline(positions.collect()))
}

/// Parses a JSON value. JSON is YAML, and a second parser for the types of the configuration would add 3 % to
/// the program.
pub(crate) fn parse_json<T: for<'de> Deserialize<'de>>(
    value: &serde_json::Value,
) -> Result<T, String> {
    // With many backends, a gateway shows more values than a file may have.
    let mut options = parser_options(MAX_NODES);
    options.budget = None;
    serde_saphyr::from_str_with_options(&value.to_string(), options)
        .map_err(|error: Error| describe_parse_error(&error).problem().to_owned())
}

pub(crate) fn to_text(value: &impl Serialize) -> String {
    // Only values that YAML cannot represent fail, and the configuration has none.
    serde_saphyr::to_string(value).unwrap_or_default()
}

/// Maximum number of values of a configuration.
const MAX_NODES: usize = 20_000;
/// Maximum number of values of a file with an entry for each key.
const LONG_FILE_NODES: usize = 300_000;

/// The options of the parser. The budgets exceed the needs of every configuration, and stop the expansion of a
/// YAML alias bomb early.
fn parser_options(max_nodes: usize) -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 16,
            max_nodes: max_nodes,
            max_aliases: 100,
            max_anchors: 100,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
        // Merge keys are an error, because a merged key would have no position of its own.
        merge_keys: MergeKeyPolicy::Error,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

impl Outline {
    /// The position of the value at a path, or of the nearest value that contains it. `None`: the file has none
    /// of these values.
    pub(crate) fn position(&self, path: &str) -> Option<Position> {
        let mut path = path;
        while !self.contains(path) {
            (path, _) = path.rsplit_once('.')?;
        }
        self.0.get(path).copied()
    }

    pub(crate) fn contains(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }
}

/// A YAML value without its scalars: the entries of a mapping or the items of a list, with their positions. A
/// scalar has none.
struct YamlNode(Vec<YamlChild>);

struct YamlChild {
    /// The key. `None`: this is an item of a list.
    key: Option<Spanned<String>>,
    value: Spanned<YamlNode>,
}

struct YamlNodeVisitor;

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(YamlNodeVisitor)
    }
}

impl<'de> Visitor<'de> for YamlNodeVisitor {
    type Value = YamlNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    visit_scalars!(Ok(YamlNode(Vec::new())));

    fn visit_unit<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode(Vec::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlNode, A::Error> {
        let mut children = Vec::new();
        while let Some(value) = items.next_element()? {
            children.push(YamlChild { key: None, value });
        }
        Ok(YamlNode(children))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<YamlNode, A::Error> {
        let mut children = Vec::new();
        while let Some((key, value)) = entries.next_entry()? {
            let key = Some(key);
            children.push(YamlChild { key, value });
        }
        Ok(YamlNode(children))
    }
}

// === errors ===

/// The parser's name for keys with values.
const MAPPING: &str = "mapping start";
/// The help for a URL in a place that needs keys, such as an entry of `backends`.
const URL_HELP: &str = "write the URL as the value of a key: `- url: http://127.0.0.1:8000`";

impl From<Location> for Position {
    fn from(location: Location) -> Self {
        Self {
            line: location.line() as usize,
            column: location.column() as usize,
            len: location.span().len() as usize,
        }
    }
}

fn to_config_error(error: &Error, text: &str, file: &Path) -> ConfigError {
    let location = error.location().filter(|location| location.line() > 0);
    let mut described = describe_parse_error(error);
    let Some(location) = location else {
        return described.in_file(file);
    };
    let redaction = match error {
        _ if SecretMistake::from_text(described.problem()).is_some() => {
            ExcerptRedaction::AtPosition
        }
        Error::SerdeUnknownField { .. } => ExcerptRedaction::ValueAfterKey,
        _ => ExcerptRedaction::Nothing,
    };
    let needs_keys = matches!(
        error.without_snippet(),
        Error::Unexpected {
            expected: MAPPING,
            ..
        }
    );
    if needs_keys && is_url_at(location, text) {
        described = described.with_help(Some(URL_HELP));
    }
    described.at_redacted(file, location.into(), text, redaction)
}

/// Whether a URL begins at this position.
fn is_url_at(location: Location, text: &str) -> bool {
    let mut lines = text.lines();
    let line = lines.nth(location.line() as usize - 1).unwrap_or_default();
    let value: String = line
        .chars()
        .skip((location.column() as usize).saturating_sub(1))
        .collect();
    let value = value.trim_start_matches(['"', '\'']);
    value.starts_with("http://") || value.starts_with("https://")
}

/// The meaning of a parser error for operators, without its location.
fn describe_parse_error(error: &Error) -> ConfigError {
    match error {
        Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => {
            describe_parse_error(error)
        }
        Error::Message { msg, .. } => ConfigError::new(msg),
        Error::SerdeUnknownField {
            field, expected, ..
        } => {
            let problem = format!("unknown key `{field}`");
            ConfigError::of_kind(ProblemKind::UnknownKey, &problem)
                .with_help(Some(&suggest_name(field, expected)))
        }
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => ConfigError::new(&format!("unknown value `{variant}`"))
            .with_help(Some(&suggest_name(variant, expected))),
        Error::SerdeMissingField { field, .. } => {
            let problem = format!("the key `{field}` is missing");
            ConfigError::of_kind(ProblemKind::MissingKey, &problem)
        }
        Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or("?");
            let problem = format!("duplicate key `{key}`: remove one");
            ConfigError::of_kind(ProblemKind::DuplicateKey, &problem)
        }
        Error::MultipleDocuments { .. } => ConfigError::new("a second document begins here")
            .with_help(Some("a configuration is one document; remove the `---`")),
        other => ConfigError::new(&describe_yaml_error(other)),
    }
}

/// The problem of an error about a single value or about the YAML itself.
fn describe_yaml_error(error: &Error) -> String {
    match error {
        Error::Unexpected { expected, .. } => format!("expected {}", describe_shape(expected)),
        Error::InvalidScalar { ty, .. } => format!("expected {}", describe_shape(ty)),
        Error::InvalidBooleanStrict { .. } => "expected true or false".to_owned(),
        Error::NullIntoString { .. } => "a value is missing here".to_owned(),
        Error::MergeKeyNotAllowed { .. } => "merge keys (`<<`) are not supported".to_owned(),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "too many values, too many aliases or too deep for a configuration".to_owned()
        }
        other => {
            let formatter: &dyn serde_saphyr::MessageFormatter =
                &serde_saphyr::UserMessageFormatter;
            formatter.format_message(other).into_owned()
        }
    }
}

/// Returns the words for operators for the kind of YAML value that the parser expected. `expected`: the
/// parser's name of this kind.
fn describe_shape(expected: &'static str) -> &'static str {
    match expected {
        MAPPING => "keys and values here",
        "sequence start" => "a list here",
        "string scalar" | "scalar" => "a single value here",
        "floating point" => "a number",
        "u8" | "u16" | "u32" | "u64" => "a whole number, 0 or more",
        other => other,
    }
}

/// Suggests the most similar valid name, or lists all valid names if no name is similar.
fn suggest_name(name: &str, valid: &[&'static str]) -> String {
    let similarity = |candidate: &&&str| strsim::jaro_winkler(&name.to_lowercase(), candidate);
    let nearest = valid
        .iter()
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    match nearest.filter(|nearest| similarity(nearest) > 0.75) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => format!("valid here: {}", valid.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(text: &str) -> Outline {
        let (_, outline) = parse::<serde::de::IgnoredAny>(text, Path::new("a.yaml")).unwrap();
        outline
    }

    #[test]
    fn the_outline_has_each_position() {
        let outline = outline("a: 1\nb:\n  - c: x\n    d: {e: null}\n  - 2.5\n");
        let at = |path: &str| {
            outline
                .position(path)
                .map(|position| (position.line, position.column))
        };
        assert_eq!(at("a"), Some((1, 4)));
        assert_eq!(at("b.0.c"), Some((3, 8)));
        assert_eq!(at("b.0.d.e"), Some((4, 12)));
        assert_eq!(at("b.1"), Some((5, 5)));
        assert_eq!(
            at("b.0.absent"),
            at("b.0"),
            "the nearest value that contains it"
        );
        assert!(outline.contains("b.0.d.e") && !outline.contains("b.0.absent"));
    }

    #[test]
    fn an_empty_yaml_file_has_an_empty_outline() {
        assert!(!outline("").contains("a"));
        assert!(!outline("# nothing\n").contains("a"));
    }

    #[test]
    fn a_yaml_alias_bomb_is_rejected_before_expansion() {
        let mut levels = vec!["a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned()];
        for level in 1..10 {
            let previous = format!("*a{}", level - 1);
            let items = [previous.as_str(); 10].join(", ");
            levels.push(format!("a{level}: &a{level} [{items}]\n"));
        }
        let bomb = levels.concat();
        let deep = "[".repeat(100) + &"]".repeat(100);
        for text in [bomb, deep, format!("[{}]", "1,".repeat(50_000))] {
            let error = parse::<serde::de::IgnoredAny>(&text, Path::new("a.yaml")).unwrap_err();
            assert_eq!(
                error.problem(),
                "too many values, too many aliases or too deep for a configuration"
            );
        }
    }

    #[test]
    fn an_unknown_name_suggests_the_most_similar_one() {
        let keys = ["backends", "listen", "log"];
        assert_eq!(suggest_name("backend", &keys), "did you mean `backends`?");
        assert_eq!(suggest_name("Listen", &keys), "did you mean `listen`?");
        assert_eq!(
            suggest_name("zzz", &keys),
            "valid here: backends, listen, log"
        );
    }
}

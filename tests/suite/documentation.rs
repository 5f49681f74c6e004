//! The configuration schema describes the keys that the parser accepts, and every alert and verdict has
//! documentation. `operations.rs` compares the generated pages; `docs/check.sh` checks the rest.

use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tokenweir::app::options::diagnosis_rules;
use tokenweir::config::{Config, Overrides, schema};

/// A key that is not valid at any place of the configuration.
const UNKNOWN_KEY: &str = "0";

/// Reads a file of the repository, by its path from the root. Returns its text.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// Returns the schema of a value without the alternative null. For a list, returns the schema of its items.
fn present(schema: &Value) -> &Value {
    let options = schema.get("anyOf").and_then(Value::as_array);
    let is_null = |option: &&Value| option["type"] == "null";
    let schema = match options.map(|options| options.iter().find(|option| !is_null(option))) {
        Some(Some(other)) => other,
        _ => schema,
    };
    schema.get("items").map_or(schema, present)
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    present(schema).get("properties").and_then(Value::as_object)
}

fn is_list(schema: &Value) -> bool {
    schema.get("items").is_some()
}

/// Builds a configuration file that has [`UNKNOWN_KEY`] at a path. Each element of the path is a key, and
/// whether the value of the key is a list.
fn file_with_unknown_key(path: &[(String, bool)]) -> String {
    let mut text = format!("{{ \"{UNKNOWN_KEY}\": 0 }}");
    for (key, is_list) in path.iter().rev() {
        text = if *is_list {
            format!("{{ {key}: [{text}] }}")
        } else {
            format!("{{ {key}: {text} }}")
        };
    }
    text
}

/// Returns the keys that the parser accepts at a path. They come from its error message for an unknown key.
fn parser_keys(path: &[(String, bool)]) -> BTreeSet<String> {
    let text = file_with_unknown_key(path);
    let error = Config::parse(&text, Path::new("gateway.yaml"), Overrides::default()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("valid here: "), "{text}: {error}");
    let (_, keys) = error.split_once("valid here: ").unwrap();
    keys.trim_end().split(", ").map(str::to_owned).collect()
}

fn compare(path: &mut Vec<(String, bool)>, schema: &Value, seen: &mut usize) {
    let Some(keys) = properties(schema) else {
        return;
    };
    let described: BTreeSet<String> = keys.keys().cloned().collect();
    assert_eq!(described, parser_keys(path), "at {path:?}");
    assert_eq!(
        present(schema)["additionalProperties"],
        false,
        "at {path:?}"
    );
    *seen += described.len();
    for (name, key) in keys {
        path.push((name.clone(), is_list(key)));
        compare(path, key, seen);
        path.pop();
    }
}

#[test]
fn the_schema_has_the_parsers_keys() {
    let mut seen = 0;
    compare(&mut Vec::new(), schema().as_value(), &mut seen);
    assert!(seen > 130, "{seen} keys");
}

#[test]
fn every_key_has_a_description() {
    fn walk(path: &str, schema: &Value) {
        for (name, key) in properties(schema).into_iter().flatten() {
            let path = format!("{path}.{name}");
            let text = key["description"].as_str().unwrap_or_default();
            assert!(text.ends_with('.'), "{path}: {text}");
            for of_code in ["::", "`None`", "[`", "Option"] {
                assert!(!text.contains(of_code), "{path}: {text}");
            }
            walk(&path, key);
        }
    }
    walk("", schema().as_value());
}

#[test]
fn every_documented_default_equals_the_parsers() {
    fn walk(path: &str, schema: &Value, value: &Value) {
        for (name, key) in properties(schema).into_iter().flatten() {
            let path = format!("{path}.{name}");
            // A part that is null by default has its own keys in its documentation only.
            let is_part = properties(key).is_some() && !is_list(key) && !value[name].is_null();
            if is_part {
                walk(&path, key, &value[name]);
            } else if path != ".retry.budget_ratio" {
                // The parser stores this value as a number of 32 bits, which JSON shows with additional
                // digits.
                assert_eq!(key.get("default"), value.get(name), "{path}");
            }
        }
    }
    let defaults = serde_json::to_value(Config::default()).unwrap();
    walk("", schema().as_value(), &defaults);
}

#[test]
fn verdict_names_are_unique_and_no_text_missing() {
    let mut names = BTreeSet::new();
    for verdict in diagnosis_rules() {
        assert!(
            names.insert(verdict.name),
            "{} is listed twice",
            verdict.name
        );
        for text in [
            verdict.meaning,
            verdict.evidence,
            verdict.remedy,
            verdict.disproof,
        ] {
            assert!(
                text.ends_with('.') && text.len() > 20,
                "{}: {text}",
                verdict.name
            );
        }
        assert!(!verdict.excluded.ends_with('.'), "{}", verdict.name);
    }
}

#[test]
fn each_verdict_has_a_section() {
    let page = read("docs/operate/diagnose.md");
    let runbooks = read("src/admin/runbooks.html");
    for verdict in diagnosis_rules() {
        let name = verdict.name;
        assert!(page.contains(&format!("\n### {name}\n")), "{name}");
        let anchor = format!("<h3 id=\"{name}\">");
        assert!(runbooks.contains(&anchor), "{name}");
    }
}

//! The page on the keys of the configuration.

use super::cell;
use schemars::Schema;
use serde_json::{Map, Value};
use std::fmt::Write;

const HEAD: &str = "\
<!-- Printed by `tokenweir generate configuration-reference`. Change the comments of the settings in src. -->

# Configuration

Every key of the file, with its default. What you leave out keeps its default. Unknown keys are
refused. [config/tokenweir.yaml](../config/tokenweir.yaml) is the same as a file, with longer comments;
`tokenweir check FILE` tries one.

- A *duration* is a number and its unit: `250ms`, `2s`, `10m`, `1h 30m`.
- A *size* is bytes, or a number and its unit: `65536`, `64KiB`, `4MB`.
- A *secret* is never written here, but where it is: `{ env: NAME }` or `{ file: PATH }`.
- `[]` after a key stands for each item of a list. A key without a default must be given.

Editors complete and check a file whose first line names the schema, which is
[config/tokenweir.schema.json](../config/tokenweir.schema.json) or comes from
`tokenweir generate schema > tokenweir.schema.json`:

```yaml
# yaml-language-server: $schema=tokenweir.schema.json
backends: [{ url: \"http://vllm-0:8000\" }]
```

Flags (`--listen`) win over variables (`TOKENWEIR_LISTEN`), variables over the file. `/config` on the
admin port shows what is in use, and where each value comes from.
";

/// One key.
struct Key {
    path: String,
    kind: String,
    default: String,
    meaning: String,
}

/// The page.
pub(crate) fn print(schema: &Schema) -> String {
    let mut page = HEAD.to_owned();
    let none = Map::new();
    let sections = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let (parts, plain): (Vec<_>, Vec<_>) =
        sections.iter().partition(|(_, section)| properties(section).is_some());
    page.push_str("\n## Single keys\n\n");
    table(&mut page, plain.iter().map(|(name, key)| Key::read((*name).clone(), key)));
    for (name, section) in parts {
        let what = text(section, "description");
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {name}\n\n{what}\n\n");
        let mut keys = Vec::new();
        if section.get("items").is_some() {
            keys.push(Key::read(name.clone(), section));
        }
        below(name, section, &mut keys);
        table(&mut page, keys.into_iter());
    }
    page
}

fn table(page: &mut String, keys: impl Iterator<Item = Key>) {
    page.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
    for Key { path, kind, default, meaning } in keys {
        let _ = writeln!(page, "| `{path}` | {kind} | {default} | {meaning} |");
    }
}

/// The keys below a section, or of each item of a list.
fn below(path: &str, section: &Value, keys: &mut Vec<Key>) {
    let path = if section.get("items").is_some() { format!("{path}[]") } else { path.to_owned() };
    for (name, key) in properties(section).into_iter().flatten() {
        let path = format!("{path}.{name}");
        if properties(key).is_none() {
            keys.push(Key::read(path, key));
            continue;
        }
        if key.get("items").is_some() || is_optional(key) {
            keys.push(Key::read(path.clone(), key));
        }
        below(&path, key, keys);
    }
}

/// The keys of a mapping, of each item of a list, or of what may be null. Not those of a secret.
fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    let schema = present(schema.get("items").unwrap_or(schema));
    schema.get("properties").and_then(Value::as_object)
}

/// Whether it may be null, and is not just a list of such words.
fn is_optional(schema: &Value) -> bool {
    options(schema, "anyOf").iter().any(is_null)
        || options(schema, "type").iter().any(|kind| kind == "null")
}

/// What it is if it is not null.
fn present(schema: &Value) -> &Value {
    match options(schema, "anyOf") {
        [one, null] if is_null(null) => one,
        _ => schema,
    }
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "null")
}

fn options<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or_default()
}

// === impl Key ===

impl Key {
    fn read(path: String, schema: &Value) -> Self {
        let default = schema.get("default").map_or_else(String::new, |value| match value {
            Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        });
        let own = text(schema, "description");
        let choices = choices(present(schema)).or_else(|| choices(present(schema.get("items")?)));
        let meaning = match choices {
            Some(choices) => format!("{own}<br>{choices}"),
            None => own.to_owned(),
        };
        let (kind, meaning) = (cell(&kind(schema)), cell(&meaning));
        Self { path, kind, default: cell(&default), meaning }
    }
}

/// The values that a key may have, each with what it means.
fn choices(schema: &Value) -> Option<String> {
    let choices: Vec<String> = options(schema, "oneOf")
        .iter()
        .filter_map(|option| {
            let value = option.get("const")?.as_str()?;
            Some(format!("`{value}`: {}", text(option, "description")))
        })
        .collect();
    (!choices.is_empty()).then(|| choices.join("<br>"))
}

/// What a value must be, in words.
fn kind(schema: &Value) -> String {
    let alone = present(schema);
    let title = text(alone, "title");
    let mut names: Vec<String> = if !title.is_empty() {
        vec![title.to_owned()]
    } else if choices(alone).is_some() {
        vec!["a word".to_owned()]
    } else {
        let names: Vec<&str> = match alone.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => options(alone, "anyOf").iter().map(|option| text(option, "type")).collect(),
        };
        let is_other = |name: &&str| *name != "null";
        names.into_iter().filter(is_other).map(|name| word(name, alone)).collect()
    };
    if is_optional(schema) {
        names.push("null".to_owned());
    }
    names.join(" or ")
}

fn word(name: &str, schema: &Value) -> String {
    match name {
        "array" => match schema.get("items").map(kind) {
            Some(item) if item == "a word" => "list of words".to_owned(),
            Some(item) => format!("list of {item}s"),
            None => "list".to_owned(),
        },
        "object" => match schema.get("additionalProperties") {
            Some(value) if value.is_object() => format!("mapping to a {}", kind(value)),
            _ => "mapping".to_owned(),
        },
        "boolean" => "true or false".to_owned(),
        "integer" => "whole number".to_owned(),
        "string" => "text".to_owned(),
        other => other.to_owned(),
    }
}

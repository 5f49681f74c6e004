//! Generates the JSON Schema of the configuration file from the configuration types, for editors
//! and for the configuration reference.

use super::root::Config;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::Value;

/// Generates the JSON Schema, in draft 2020-12. Subschemas are inlined: the schema contains no
/// `$ref`.
pub fn schema() -> Schema {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let settings = settings.with_transform(RecursiveTransform(adapt_schema));
    let mut schema = settings.into_generator().into_root_schema_for::<Config>();
    let description = "All keys of the configuration file. A missing key has its default.";
    schema.insert("title".to_owned(), "The configuration of tokenweir".into());
    schema.insert("description".to_owned(), description.into());
    schema
}

/// Makes a JSON Schema, which Schemars generated from Rust types, readable for authors of configuration files.
/// Replaces Rust notation in descriptions, removes defaults of whole sections, and shortens defaults of type
/// `f32`.
fn adapt_schema(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text
            .replace("`None`", "`null`")
            .replace("[`", "`")
            .replace("`]", "`");
    }
    // A key that may be null and has no other default has the default null.
    let is_null =
        |kind: &Value| kind == "null" || kind.get("type").is_some_and(|kind| kind == "null");
    let has_null = |key: &str| {
        schema
            .get(key)
            .and_then(Value::as_array)
            .is_some_and(|kinds| kinds.iter().any(is_null))
    };
    if schema.get("default").is_none() && (has_null("type") || has_null("anyOf")) {
        schema.insert("default".to_owned(), Value::Null);
    }
    // The keys of a section have their own defaults, so the section needs none.
    if schema
        .get("default")
        .and_then(Value::as_object)
        .is_some_and(|keys| !keys.is_empty())
    {
        schema.remove("default");
    }
    // An `f32` converted to `f64` has additional digits, so the shortest form of the `f32` replaces it.
    if schema.get("format").is_some_and(|format| format == "float") {
        let number = schema.get("default").and_then(Value::as_f64);
        let shortest = number.and_then(|number| (number as f32).to_string().parse::<f64>().ok());
        if let Some(shortest) = shortest {
            schema.insert("default".to_owned(), shortest.into());
        }
    }
}

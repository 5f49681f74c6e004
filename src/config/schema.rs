//! The configuration file as a JSON Schema, for editors and for the reference: from the types that
//! read it, so that it has their keys, their values and their defaults.

use super::Config;
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::Value;

/// The schema, of draft 2020-12. Nothing in it refers to another place, so that it can be walked.
pub fn schema() -> Schema {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let settings = settings.with_transform(RecursiveTransform(polish));
    let mut schema = settings.into_generator().into_root_schema_for::<Config>();
    let about = "Every key of the file. What is left out keeps its default.";
    schema.insert("title".to_owned(), "The configuration of tokenweir".into());
    schema.insert("description".to_owned(), about.into());
    schema
}

/// What stands in the code for its readers becomes what writers of a file can use.
fn polish(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace("`None`", "`null`").replace("[`", "`").replace("`]", "`");
    }
    // Those of a section stand at its keys.
    if schema.get("default").and_then(Value::as_object).is_some_and(|keys| !keys.is_empty()) {
        schema.remove("default");
    }
    // A number of 32 bits that becomes one of 64 shows digits that nobody wrote.
    if schema.get("format").is_some_and(|format| format == "float") {
        let number = schema.get("default").and_then(Value::as_f64);
        let written = number.and_then(|number| (number as f32).to_string().parse::<f64>().ok());
        if let Some(written) = written {
            schema.insert("default".to_owned(), written.into());
        }
    }
}

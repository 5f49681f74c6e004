//! JSON Schema of durations and sizes in configuration files.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

/// The JSON Schema of the texts that [`super::duration::parse`] accepts as a duration.
pub struct Duration;

/// The JSON Schema of the numbers and texts that are accepted as a size in bytes, as by
/// [`super::bytes::parse`].
pub struct Size;

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "duration",
            "type": "string",
            "description": "A duration: numbers with units, such as 250ms, 2s, 10m or 1h 30m.",
            "pattern": "^\\s*([0-9]+(\\.[0-9]+)?\\s*[a-zA-Zµμ]+\\s*)+$",
        })
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "size",
            "description": "A size: bytes, or a number with its unit, such as 64KiB or 4MB.",
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": "^\\s*[0-9]+\\s*(([kKmMgG][iI]?)?[bB])?\\s*$" },
            ],
        })
    }
}

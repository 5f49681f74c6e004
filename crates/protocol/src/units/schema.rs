//! JSON Schema of durations and sizes in configuration files.

use super::{Duration, Optional, Size};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

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

impl<T: JsonSchema> JsonSchema for Optional<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        Option::<T>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Option::<T>::json_schema(generator)
    }
}

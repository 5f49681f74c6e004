//! The JSON form of a line: an object whose names are those of the fields of a struct.
//!
//! A name is an identifier, which needs no escape, so it is copied. `serde_json` reads each byte of each name
//! to find what it must escape ([decision 0026](../../../docs/decisions/0026-hot-path.md)).

use serde::Serialize;
use std::fmt::Display;

/// A line in its two forms: JSON, and text by [`Display`].
pub(super) trait LogLine: Display {
    fn write_json(&self, json: &mut JsonObject);
}

/// Writes the members of one JSON object.
#[derive(Debug)]
pub(super) struct JsonObject(Vec<u8>);

/// Writes fields of `$line`: each after `member`, and those after `known` that are not `None`.
macro_rules! write_fields {
    (@member $json:ident, $name:expr, $value:expr) => {
        $json.member($name, &$value)
    };
    (@known $json:ident, $name:expr, $value:expr) => {
        if let Some(value) = &$value {
            $json.member($name, value);
        }
    };
    ($json:ident, $line:ident, $($kind:ident: [$($field:ident),+ $(,)?]),+ $(,)?) => {
        $($(write_fields!(@$kind $json, concat!(",\"", stringify!($field), "\":"), $line.$field);)+)+
    };
}
pub(super) use write_fields;

impl JsonObject {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// Writes one member. `name`: a comma, the name in quotes, and a colon.
    #[inline]
    pub(super) fn member(&mut self, name: &'static str, value: &(impl Serialize + ?Sized)) {
        self.0.extend_from_slice(name.as_bytes());
        // Serializing texts and numbers into memory cannot fail.
        let _ = serde_json::to_writer(&mut self.0, value);
    }

    /// The text of the object.
    pub(super) fn finish(mut self) -> String {
        if let Some(comma) = self.0.first_mut() {
            *comma = b'{';
        }
        self.0.push(b'}');
        String::from_utf8(self.0).unwrap_or_default()
    }
}

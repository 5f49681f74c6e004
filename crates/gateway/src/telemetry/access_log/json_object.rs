//! The JSON form of access log lines.
//!
//! Member names are known at compile time and need no escapes, so they are copied unchanged. `serde_json` would
//! search each byte of each name for characters to escape ([decision
//! 0007](../../../docs/decisions/0007-log-files-and-watched-files.md)).

use crate::telemetry::sanitize;
use serde::Serialize;
use std::fmt::Display;

/// An access log line that can be written as JSON, and as text by [`Display`].
pub(super) trait LogLine: Display {
    fn write_json(&self, json: &mut JsonObject<'_>);
}

/// Appends the members of one JSON object to a buffer.
#[derive(Debug)]
pub(super) struct JsonObject<'l>(&'l mut Vec<u8>);

/// Writes members of a JSON object, in the order of the list. `"name": value` always writes the member.
/// `"name" ? value` omits it if the value is `None`. At compile time, the macro joins each name with its comma,
/// quotes and colon.
macro_rules! members {
    ($json:ident, { $($name:literal $mark:tt $value:expr),* $(,)? }) => {
        $(members!(@one $json, $name $mark $value);)*
    };
    (@one $json:ident, $name:literal : $value:expr) => {
        $json.member(concat!(",\"", $name, "\":"), &$value)
    };
    (@one $json:ident, $name:literal ? $value:expr) => {
        if let Some(value) = $value {
            members!(@one $json, $name : value);
        }
    };
}
pub(super) use members;

impl JsonObject<'_> {
    /// Appends one JSON object to `lines`. `write` writes the members of the object.
    pub(super) fn append(lines: &mut Vec<u8>, write: impl FnOnce(&mut JsonObject<'_>)) {
        let start = lines.len();
        write(&mut JsonObject(lines));
        if let Some(comma) = lines.get_mut(start) {
            *comma = b'{';
        }
        lines.push(b'}');
        if let Some(line) = lines
            .get(start..)
            .filter(|line| !sanitize::is_plain_json(line))
        {
            let line = sanitize::json(String::from_utf8_lossy(line).into_owned());
            lines.truncate(start);
            lines.extend_from_slice(line.as_bytes());
        }
    }

    /// Writes one member. `name`: a comma, the name in quotes, and a colon.
    #[inline]
    pub(super) fn member(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        self.0.extend_from_slice(name.as_bytes());
        // Serializing texts and numbers into memory cannot fail.
        let _ = serde_json::to_writer(&mut *self.0, value);
    }
}

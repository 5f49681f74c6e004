//! Templates with `$name` placeholders, events and JSON strings.

use bytes::BytesMut;
use serde_json::Value;

/// Appends a template with its `$name` placeholders replaced by values.
pub(super) fn fill(out: &mut BytesMut, template: &str, values: &[(&str, &str)]) {
    let mut pieces = template.split('$');
    out.extend_from_slice(pieces.next().unwrap_or_default().as_bytes());
    for piece in pieces {
        let end = piece.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(piece.len());
        let (name, rest) = piece.split_at(end);
        let hole = values.iter().find(|(hole, _)| *hole == name);
        debug_assert!(hole.is_some(), "no value for ${name}");
        out.extend_from_slice(hole.map_or("", |(_, value)| value).as_bytes());
        out.extend_from_slice(rest.as_bytes());
    }
}

/// Returns a template with its placeholders replaced.
pub(super) fn filled(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = BytesMut::new();
    fill(&mut out, template, values);
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends an event without an event type.
pub(super) fn data(out: &mut BytesMut, template: &str, values: &[(&str, &str)]) {
    out.extend_from_slice(b"data: ");
    fill(out, template, values);
    out.extend_from_slice(b"\n\n");
}

/// Appends an event with an event type.
pub(super) fn typed(out: &mut BytesMut, event: &str, template: &str, values: &[(&str, &str)]) {
    fill(out, "event: $event\n", &[("event", event)]);
    data(out, template, values);
}

/// A text as a JSON string with quotes.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

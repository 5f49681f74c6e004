//! Templates with `$name` placeholders, server-sent events and JSON strings.

use bytes::BytesMut;
use serde_json::Value;

/// Appends a template with its `$name` placeholders replaced. `values` contains the name and the
/// value of each placeholder. A placeholder without a value is a programming error.
pub(super) fn fill(out: &mut BytesMut, template: &str, values: &[(&str, &str)]) {
    let mut pieces = template.split('$');
    out.extend_from_slice(pieces.next().unwrap_or_default().as_bytes());
    for piece in pieces {
        let end = piece
            .find(|c: char| !c.is_ascii_lowercase() && c != '_')
            .unwrap_or(piece.len());
        let (name, literal) = piece.split_at(end);
        let value = values.iter().find(|(placeholder, _)| *placeholder == name);
        debug_assert!(value.is_some(), "no value for ${name}");
        out.extend_from_slice(value.map_or("", |(_, value)| value).as_bytes());
        out.extend_from_slice(literal.as_bytes());
    }
}

/// Returns a template with its placeholders replaced.
pub(super) fn filled(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = BytesMut::new();
    fill(&mut out, template, values);
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends a server-sent event without an event type.
pub(super) fn write_data_event(out: &mut BytesMut, template: &str, values: &[(&str, &str)]) {
    out.extend_from_slice(b"data: ");
    fill(out, template, values);
    out.extend_from_slice(b"\n\n");
}

/// Appends a server-sent event with an event type.
pub(super) fn write_typed_event(
    out: &mut BytesMut,
    event: &str,
    template: &str,
    values: &[(&str, &str)],
) {
    fill(out, "event: $event\n", &[("event", event)]);
    write_data_event(out, template, values);
}

/// A text as a JSON string with quotes.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

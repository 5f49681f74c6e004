//! A builder for span attributes. Absent values are omitted. Texts from clients and backends are
//! limited in length.

use opentelemetry::{Array, KeyValue, Value};
use std::time::Duration;

/// Maximum length of the text in a span attribute, in bytes. The SDK applies such a limit only in its own
/// tracer, which the gateway does not use.
const MAX_TEXT_BYTES: usize = 1_024;

/// A list of span attributes, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct SpanAttributes(Vec<KeyValue>);

/// A value of a span attribute. OTLP has only signed integers, so a count above the largest one becomes the
/// largest one. Durations are in seconds.
pub(super) trait AttributeValue {
    /// Returns the value. `None`: the span does not get the attribute.
    fn into_value(self) -> Option<Value>;
}

macro_rules! attribute_values {
    ($($type:ty: |$value:ident| $converted:expr),* $(,)?) => {
        $(impl AttributeValue for $type {
            fn into_value(self) -> Option<Value> {
                let $value = self;
                Some($converted.into())
            }
        })*
    };
}

attribute_values! {
    Value: |value| value,
    &'static str: |value| value,
    String: |value| value,
    bool: |value| value,
    f64: |value| value,
    i64: |value| value,
    u16: |value| i64::from(value),
    u32: |value| i64::from(value),
    u64: |value| i64::try_from(value).unwrap_or(i64::MAX),
    usize: |value| i64::try_from(value).unwrap_or(i64::MAX),
    Duration: |value| value.as_secs_f64(),
}

impl<T: AttributeValue> AttributeValue for Option<T> {
    fn into_value(self) -> Option<Value> {
        self?.into_value()
    }
}

/// Adds the attributes of a list, in its order.
macro_rules! put_all {
    ($attributes:ident, { $($key:expr => $value:expr),* $(,)? }) => {
        $($attributes.put($key, $value);)*
    };
}
pub(super) use put_all;

/// A list of attributes, as [`put_all`] adds them.
macro_rules! attributes {
    ($($key:expr => $value:expr),* $(,)?) => {{
        let mut attributes = SpanAttributes::default();
        $(attributes.put($key, $value);)*
        attributes
    }};
}
pub(super) use attributes;

impl SpanAttributes {
    /// Adds an attribute with this key, if its value is known.
    pub(super) fn put(&mut self, key: &'static str, value: impl AttributeValue) {
        if let Some(value) = value.into_value() {
            self.0.push(KeyValue::new(key, value));
        }
    }

    /// Returns the attributes as a vector, in the order in which they were added.
    pub(super) fn into_vec(self) -> Vec<KeyValue> {
        self.0
    }
}

/// Converts a text from a client or a backend to an attribute value, truncated to [`MAX_TEXT_BYTES`].
pub(super) fn text(raw: &str) -> Value {
    raw[..raw.floor_char_boundary(MAX_TEXT_BYTES)]
        .to_owned()
        .into()
}

/// Converts a host name or address to an attribute value, without the brackets of an IPv6 address
/// in a URL.
pub(super) fn host(host: &str) -> Value {
    text(host.trim_matches(['[', ']']))
}

/// Converts a list of static texts to an attribute value. `None`: the list is empty.
pub(super) fn words(words: impl Iterator<Item = &'static str>) -> Option<Value> {
    let words: Vec<_> = words.map(Into::into).collect();
    (!words.is_empty()).then_some(Value::Array(Array::String(words)))
}

/// Converts a list of texts from clients or backends to an attribute value. Each text is truncated
/// to [`MAX_TEXT_BYTES`].
pub(super) fn texts<'a>(raw: impl Iterator<Item = &'a str>) -> Value {
    let truncate = |raw: &str| {
        raw[..raw.floor_char_boundary(MAX_TEXT_BYTES)]
            .to_owned()
            .into()
    };
    Value::Array(Array::String(raw.map(truncate).collect()))
}

/// Converts a list of floating-point numbers to an attribute value.
pub(super) fn reals(numbers: impl Iterator<Item = f64>) -> Value {
    Value::Array(Array::F64(numbers.collect()))
}

pub(super) fn integers(numbers: impl Iterator<Item = u32>) -> Value {
    Value::Array(Array::I64(numbers.map(i64::from).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_truncated_between_characters() {
        let long = format!("{}é", "a".repeat(MAX_TEXT_BYTES - 1));
        assert_eq!(text(&long).as_str().len(), MAX_TEXT_BYTES - 1);
        assert_eq!(text("é").as_str(), "é");
    }
}

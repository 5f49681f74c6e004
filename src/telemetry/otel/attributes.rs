//! A list of attributes in the making. What a record does not know is left out, and text that
//! came from outside is bounded.

use opentelemetry::{Array, KeyValue, Value};
use std::time::Duration;

/// Longest text, in bytes. The SDK knows a limit for such values, but only its own tracer applies
/// it.
const MAX_TEXT: usize = 1_024;

/// Attributes, in the order in which they were put.
#[derive(Debug, Default)]
pub(super) struct Attributes(Vec<KeyValue>);

impl Attributes {
    /// Adds a value.
    pub(super) fn put(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.0.push(KeyValue::new(key, value));
        self
    }

    /// Adds a value, if there is one.
    pub(super) fn put_some(self, key: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.put(key, value),
            None => self,
        }
    }

    /// The list.
    pub(super) fn into_vec(self) -> Vec<KeyValue> {
        self.0
    }
}

/// Text from outside.
pub(super) fn text(raw: &str) -> Value {
    raw[..raw.floor_char_boundary(MAX_TEXT)].to_owned().into()
}

/// A host, without the brackets that an IPv6 address has in a URL.
pub(super) fn host(host: &str) -> Value {
    text(host.trim_matches(['[', ']']))
}

/// A list of words.
pub(super) fn words(words: impl Iterator<Item = &'static str>) -> Option<Value> {
    let words: Vec<_> = words.map(Into::into).collect();
    (!words.is_empty()).then_some(Value::Array(Array::String(words)))
}

/// A list of texts from outside.
pub(super) fn texts<'a>(raw: impl Iterator<Item = &'a str>) -> Value {
    let cut = |raw: &str| raw[..raw.floor_char_boundary(MAX_TEXT)].to_owned().into();
    Value::Array(Array::String(raw.map(cut).collect()))
}

/// A list of numbers.
pub(super) fn reals(numbers: impl Iterator<Item = f64>) -> Value {
    Value::Array(Array::F64(numbers.collect()))
}

/// A count. OTLP knows signed numbers only.
pub(super) fn count(count: u64) -> Value {
    i64::try_from(count).unwrap_or(i64::MAX).into()
}

/// A duration, in seconds.
pub(super) fn seconds(duration: Duration) -> Value {
    duration.as_secs_f64().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_on_a_character_boundary() {
        let long = format!("{}é", "a".repeat(MAX_TEXT - 1));
        assert_eq!(text(&long).as_str().len(), MAX_TEXT - 1);
        assert_eq!(text("é").as_str(), "é");
    }

    #[test]
    fn what_is_unknown_is_left_out() {
        let list = Attributes::default()
            .put("a", 1)
            .put_some("b", None::<i64>)
            .put_some("c", words([].into_iter()))
            .into_vec();
        assert_eq!(list, [KeyValue::new("a", 1)]);
    }
}

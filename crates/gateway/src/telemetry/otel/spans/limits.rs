//! The limits of spans in the `OTEL_SPAN_*` and `OTEL_ATTRIBUTE_*` environment variables. The SDK applies the
//! limits only in its own tracer, which the gateway does not use.
//!
//! If a span has more attributes, events or links than its limit allows, the last ones are dropped, and the
//! span states the number of dropped ones. Texts over the limit are truncated and not counted.

use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::SpanData;

/// Limits of one span, from the `OTEL_*` variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanLimits {
    /// Maximum number of attributes. Further ones are dropped.
    pub attributes: usize,
    /// Maximum number of events. Further ones are dropped.
    pub events: usize,
    /// Maximum number of links. Further ones are dropped.
    pub links: usize,
    /// Maximum length of a text value, in characters.
    pub text: usize,
}

impl SpanLimits {
    /// Drops the attributes, events and links over the limits, and truncates the texts.
    pub(in crate::telemetry::otel) fn apply(&self, span: &mut SpanData) {
        span.dropped_attributes_count += truncate_list(&mut span.attributes, self.attributes);
        span.events.dropped_count += truncate_list(&mut span.events.events, self.events);
        span.links.dropped_count += truncate_list(&mut span.links.links, self.links);
        let events = span
            .events
            .events
            .iter_mut()
            .flat_map(|event| &mut event.attributes);
        span.attributes
            .iter_mut()
            .chain(events)
            .for_each(|attribute| self.truncate_attribute(attribute));
    }

    fn truncate_attribute(&self, KeyValue { value, .. }: &mut KeyValue) {
        match value {
            Value::String(text) => self.truncate_text(text),
            Value::Array(Array::String(texts)) => {
                for text in texts {
                    self.truncate_text(text);
                }
            }
            _ => {}
        }
    }

    fn truncate_text(&self, text: &mut StringValue) {
        // The number of characters never exceeds the number of bytes, which is cheaper to read.
        if text.as_str().len() > self.text {
            let truncated: String = text.as_str().chars().take(self.text).collect();
            *text = truncated.into();
        }
    }
}

impl Default for SpanLimits {
    /// The default: 128 attributes, events and links. Texts have no limit here, because building an attribute
    /// already truncates texts from clients and backends.
    fn default() -> Self {
        Self {
            attributes: 128,
            events: 128,
            links: 128,
            text: usize::MAX,
        }
    }
}

/// Truncates a list to `max_length` elements. Returns the number of dropped elements.
fn truncate_list<T>(list: &mut Vec<T>, max_length: usize) -> u32 {
    let dropped = list.len().saturating_sub(max_length);
    list.truncate(max_length);
    u32::try_from(dropped).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::tests::spans;
    use super::*;
    use tokenweir_request::record::fixtures::streamed;

    #[test]
    fn values_beyond_the_limits_are_counted() {
        let mut span = spans(&streamed()).swap_remove(1);
        let (attributes, events) = (span.attributes.len(), span.events.events.len());
        SpanLimits::default().apply(&mut span);
        assert_eq!(
            (span.attributes.len(), span.dropped_attributes_count),
            (attributes, 0)
        );
        let limits = SpanLimits {
            attributes: 5,
            events: 1,
            links: 0,
            text: 3,
        };
        limits.apply(&mut span);
        assert_eq!(span.attributes.len(), 5);
        assert_eq!(span.dropped_attributes_count as usize, attributes - 5);
        assert_eq!(
            (span.events.len(), span.events.dropped_count as usize),
            (1, events - 1)
        );
        let texts: Vec<String> = span
            .attributes
            .iter()
            .map(|kv| kv.value.to_string())
            .collect();
        assert!(texts.contains(&"cha".to_owned()) && texts.iter().all(|text| text.len() <= 4));
        let lists = span.events[0]
            .attributes
            .iter()
            .map(|kv| kv.value.to_string());
        assert!(lists.into_iter().any(|list| list == r#"["vll","vll"]"#));
    }
}

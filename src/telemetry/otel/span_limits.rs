//! The limits of `OTEL_SPAN_*` and `OTEL_ATTRIBUTE_*`, which only the SDK's own tracer would apply:
//! what is over them is left out, and counted where the protocol has a place for it.

use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::SpanData;

/// How large a span may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanLimits {
    /// Most attributes.
    pub attributes: usize,
    /// Most events.
    pub events: usize,
    /// Most links.
    pub links: usize,
    /// Longest text in a value, in characters.
    pub text: usize,
}

impl SpanLimits {
    /// Leaves out what is over the limits.
    pub(super) fn apply(&self, span: &mut SpanData) {
        span.dropped_attributes_count += cut(&mut span.attributes, self.attributes);
        span.events.dropped_count += cut(&mut span.events.events, self.events);
        span.links.dropped_count += cut(&mut span.links.links, self.links);
        let events = span.events.events.iter_mut().flat_map(|event| &mut event.attributes);
        span.attributes.iter_mut().chain(events).for_each(|attribute| self.shorten(attribute));
    }

    fn shorten(&self, KeyValue { value, .. }: &mut KeyValue) {
        match value {
            Value::String(text) => self.shorten_text(text),
            Value::Array(Array::String(texts)) => {
                for text in texts {
                    self.shorten_text(text);
                }
            }
            _ => {}
        }
    }

    fn shorten_text(&self, text: &mut StringValue) {
        // As many bytes are at least as many characters.
        if text.as_str().len() > self.text {
            let short: String = text.as_str().chars().take(self.text).collect();
            *text = short.into();
        }
    }
}

impl Default for SpanLimits {
    /// 128 of each, and texts of any length: those from outside are bounded where they come in.
    fn default() -> Self {
        Self { attributes: 128, events: 128, links: 128, text: usize::MAX }
    }
}

/// Leaves out the last ones, and counts them.
fn cut<T>(list: &mut Vec<T>, most: usize) -> u32 {
    let dropped = list.len().saturating_sub(most);
    list.truncate(most);
    u32::try_from(dropped).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::spans;
    use super::super::style::Style;
    use super::*;
    use tokenweir_core::record::sample::streamed;

    #[test]
    fn what_is_over_the_limits_is_left_out_and_counted() {
        let record = streamed();
        let trace = record.trace.clone().unwrap();
        let mut span = spans::tree(&record, &trace, &Style::default()).swap_remove(1);
        let (attributes, events) = (span.attributes.len(), span.events.events.len());
        SpanLimits::default().apply(&mut span);
        assert_eq!((span.attributes.len(), span.dropped_attributes_count), (attributes, 0));
        let limits = SpanLimits { attributes: 5, events: 1, links: 0, text: 3 };
        limits.apply(&mut span);
        assert_eq!(span.attributes.len(), 5);
        assert_eq!(span.dropped_attributes_count as usize, attributes - 5);
        assert_eq!((span.events.len(), span.events.dropped_count as usize), (1, events - 1));
        let texts: Vec<String> = span.attributes.iter().map(|kv| kv.value.to_string()).collect();
        assert!(texts.contains(&"cha".to_owned()) && texts.iter().all(|text| text.len() <= 4));
        let lists = span.events[0].attributes.iter().map(|kv| kv.value.to_string());
        assert!(lists.into_iter().any(|list| list == r#"["vll","vll"]"#));
    }
}

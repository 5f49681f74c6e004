//! Exports one span per request to an OTLP collector, as vLLM does: `llm_request`, a child of the span in the
//! request's `traceparent`. A request whose client disconnected has no span. The start and the end of a span
//! are in real time. Its attributes are in simulated seconds, like the metrics, so they differ from the
//! duration of the span if the time scale is not 1.

use crate::engine::FinishedSequence;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor,
};
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_protocol::trace_context::TraceParent;

/// The span exporter. If its queue is full, it drops spans instead of blocking.
#[derive(Debug)]
pub(crate) struct RequestSpanExporter {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
}

/// Span data of a request, without its times.
#[derive(Debug, Clone)]
pub(crate) struct RequestSpan {
    /// The span of the client, from the `traceparent` header. `None`: the span of this request begins a new
    /// trace.
    pub(crate) parent: Option<TraceParent>,
    pub(crate) request_id: String,
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    /// Maximum number of output tokens per choice.
    pub(crate) max_tokens: u32,
}

impl RequestSpanExporter {
    /// Starts the export with OTLP/gRPC to the URL of a collector. The collector need not be
    /// reachable yet. Must be called in a Tokio runtime.
    pub(crate) fn start(endpoint: &str) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .build()?;
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        processor.set_resource(&Resource::builder().with_service_name("vllm").build());
        let scope = InstrumentationScope::builder("vllm.simulated").build();
        Ok(Self { processor, scope })
    }

    /// Exports the span of a request that has just finished, unless the client decided not to sample the trace.
    /// `scale`: simulated seconds per real second. `ids`: a trace id and a span id. The trace id is used only
    /// if the client sent none.
    pub(crate) fn export(
        &self,
        span_data: &RequestSpan,
        times: &FinishedSequence,
        scale: f64,
        ids: (u128, u64),
    ) {
        let should_export = span_data.parent.is_none_or(|parent| parent.is_sampled);
        if should_export {
            self.processor
                .on_end(self.span(span_data, times, scale, ids));
        }
    }

    fn span(
        &self,
        span_data: &RequestSpan,
        times: &FinishedSequence,
        scale: f64,
        ids: (u128, u64),
    ) -> SpanData {
        let trace = span_data.parent.map_or(ids.0, |parent| parent.trace_id);
        let end = clock::wall_time();
        let duration = times
            .last_token
            .saturating_sub(times.arrived)
            .div_f64(scale);
        let flags = TraceFlags::SAMPLED;
        let trace = TraceId::from(trace);
        let id = SpanId::from(ids.1);
        SpanData {
            span_context: SpanContext::new(trace, id, flags, false, TraceState::NONE),
            parent_span_id: span_data
                .parent
                .map_or(SpanId::INVALID, |at| SpanId::from(at.span_id)),
            parent_span_is_remote: span_data.parent.is_some(),
            span_kind: SpanKind::Server,
            name: "llm_request".into(),
            start_time: end.checked_sub(duration).unwrap_or(end),
            end_time: end,
            attributes: attributes(span_data, times),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }
}

fn attributes(span_data: &RequestSpan, times: &FinishedSequence) -> Vec<KeyValue> {
    let &FinishedSequence {
        arrived,
        queued,
        scheduled,
        first_token,
        last_token,
        ..
    } = times;
    let between = |name, start: Duration, end: Duration| {
        KeyValue::new(name, end.saturating_sub(start).as_secs_f64())
    };
    vec![
        between("gen_ai.latency.time_to_first_token", arrived, first_token),
        between("gen_ai.latency.e2e", arrived, last_token),
        between("gen_ai.latency.time_in_queue", queued, scheduled),
        between(
            "gen_ai.latency.time_in_model_prefill",
            scheduled,
            first_token,
        ),
        between(
            "gen_ai.latency.time_in_model_decode",
            first_token,
            last_token,
        ),
        between(
            "gen_ai.latency.time_in_model_inference",
            scheduled,
            last_token,
        ),
        KeyValue::new(
            "gen_ai.usage.prompt_tokens",
            i64::from(span_data.prompt_tokens),
        ),
        KeyValue::new(
            "gen_ai.usage.completion_tokens",
            i64::from(span_data.output_tokens),
        ),
        KeyValue::new("gen_ai.request.max_tokens", i64::from(span_data.max_tokens)),
        KeyValue::new("gen_ai.request.id", span_data.request_id.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SequenceId;

    #[tokio::test]
    async fn a_span_is_a_child_with_real_duration() {
        let spans = RequestSpanExporter::start("http://127.0.0.1:1").expect("an exporter");
        let parent = TraceParent {
            trace_id: 5,
            span_id: 6,
            is_sampled: true,
        };
        let span_data = RequestSpan {
            parent: Some(parent),
            request_id: "r".to_owned(),
            prompt_tokens: 3,
            output_tokens: 4,
            max_tokens: 16,
        };
        let at = Duration::from_secs;
        let times = FinishedSequence {
            id: SequenceId(0),
            arrived: at(1),
            queued: at(1),
            scheduled: at(2),
            first_token: at(4),
            last_token: at(11),
        };
        let span = spans.span(&span_data, &times, 10.0, (7, 8));
        assert_eq!(span.span_context.trace_id(), TraceId::from(5_u128));
        assert_eq!(span.parent_span_id, SpanId::from(6_u64));
        assert_eq!(
            span.end_time.duration_since(span.start_time).unwrap(),
            at(1)
        );
        let first_token = KeyValue::new("gen_ai.latency.time_to_first_token", 3.0);
        assert!(
            span.attributes.contains(&first_token),
            "{:?}",
            span.attributes
        );
        let root = spans.span(
            &RequestSpan {
                parent: None,
                ..span_data
            },
            &times,
            1.0,
            (7, 8),
        );
        assert_eq!(root.span_context.trace_id(), TraceId::from(7_u128));
        assert_eq!(root.parent_span_id, SpanId::INVALID);
    }
}

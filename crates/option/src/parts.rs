//! The parts that options add to the gateway.

use crate::diagnosis::DiagnosisHooks;
use futures_util::future::BoxFuture;
use std::any::Any;
use std::sync::Arc;
use tokenweir_gateway::backend::BackendDrivers;
use tokenweir_gateway::backend::facets::PoolFacet;
use tokenweir_gateway::proxy::extensions::Extensions;
use tokenweir_gateway::proxy::option::RequestOption;
use tokenweir_gateway::proxy::{TextSample, TextSampling};
use tokenweir_request::access::QuotaScope;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::TextConsumer;

/// The parts that options add at their start, in the order of the options.
#[derive(Default)]
pub struct OptionParts {
    /// The parts for records.
    pub records: RecordParts,
    /// The parts of options that all backends of the pool share.
    pub pool_facets: Vec<Arc<dyn PoolFacet>>,
    /// The background work of options on backends.
    pub drivers: BackendDrivers,
    /// Whether all gateways count limits together, or each one alone.
    pub quota_scope: QuotaScope,
    /// The parts that options can still add when they join the gateway.
    pub gateway: GatewayParts,
}

/// The parts of options for records. The telemetry takes them before the gateway exists.
#[derive(Default)]
pub struct RecordParts {
    /// The sinks that get records in batches.
    pub sinks: Vec<Arc<dyn Sink>>,
    /// The sinks that get each record when its request ends.
    pub immediate_sinks: Vec<Arc<dyn Sink>>,
    /// The consumers of sampled prompts and responses.
    pub text_sampling: TextSampling,
}

/// The parts that options can add until they have joined the gateway. The program takes them after that.
#[derive(Default)]
pub struct GatewayParts {
    /// The steps of options on the path of a request.
    pub requests: Vec<Arc<dyn RequestOption>>,
    /// The values that options attach to the state of the proxy.
    pub extensions: Extensions,
    /// The hooks of options for the diagnosis.
    pub diagnosis: Vec<Arc<dyn DiagnosisHooks>>,
    /// The guards of the workers of options. They are dropped after the last record was written.
    pub guards: Vec<Box<dyn Any + Send>>,
    /// The futures for which a shutdown waits after the last request.
    pub ends: Vec<BoxFuture<'static, ()>>,
    /// The values that options share with later options of the list.
    shared: Vec<Arc<dyn Any + Send + Sync>>,
}

impl OptionParts {
    /// Adds a sink that gets records in batches, and the guard of its worker. Returns the sink.
    pub fn add_sink<S: Sink + 'static>(&mut self, sink: S, guard: impl Any + Send) -> Arc<S> {
        let sink = Arc::new(sink);
        self.records.sinks.push(sink.clone());
        self.gateway.guards.push(Box::new(guard));
        sink
    }
}

impl RecordParts {
    /// Adds a sample of the prompts and responses of a share of the requests. Returns the consumer that records of the
    /// sample name. [`TextSample`] describes the values.
    pub fn add_text_sample(&mut self, share: f64, is_by_trace: bool) -> TextConsumer {
        let samples = &mut self.text_sampling.samples;
        let consumer = TextConsumer::new(samples.len() as u8);
        samples.push(TextSample {
            consumer,
            share,
            is_by_trace,
        });
        consumer
    }
}

impl GatewayParts {
    /// Shares a value with later options of the list.
    pub fn share<T: Send + Sync + 'static>(&mut self, value: Arc<T>) {
        self.shared.push(value);
    }

    /// The value of type `T` that an earlier option shares. `None`: no earlier option shares such a value.
    pub fn find<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let mut shared = self.shared.iter();
        shared.find_map(|value| value.clone().downcast().ok())
    }
}

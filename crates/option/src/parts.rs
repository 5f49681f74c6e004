//! The parts of the gateway that options can bring.

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

/// What options bring at their start, in their order. The program takes this value apart when it builds the gateway.
#[derive(Default)]
pub struct OptionParts {
    /// What they do with records.
    pub records: RecordParts,
    /// What all backends of the pool share.
    pub pool_facets: Vec<Arc<dyn PoolFacet>>,
    /// What they do with backends in the background.
    pub drivers: BackendDrivers,
    /// Whether all gateways count limits together.
    pub quota_scope: QuotaScope,
    /// What the program takes after the options have joined the gateway.
    pub gateway: GatewayParts,
}

/// What options do with records. The telemetry takes it before the gateway exists.
#[derive(Default)]
pub struct RecordParts {
    /// The sinks that get records in batches.
    pub sinks: Vec<Arc<dyn Sink>>,
    /// The sinks that get each record when its request ends.
    pub immediate_sinks: Vec<Arc<dyn Sink>>,
    /// The samples of the texts of requests.
    pub text_sampling: TextSampling,
}

/// What options can still bring when they join the gateway. The program takes it after that.
#[derive(Default)]
pub struct GatewayParts {
    /// What they do on the path of a request.
    pub requests: Vec<Arc<dyn RequestOption>>,
    /// What they attach to the state of the proxy.
    pub extensions: Extensions,
    /// What they tell the diagnosis, and learn from it.
    pub diagnosis: Vec<Arc<dyn DiagnosisHooks>>,
    /// The guards of their workers, which are dropped when the last record was written.
    pub guards: Vec<Box<dyn Any + Send>>,
    /// What a shutdown waits for, after the last request.
    pub ends: Vec<BoxFuture<'static, ()>>,
    /// What options show to later options of the list.
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
    /// Adds a sample of the texts of this share of requests. Returns the consumer that its records name. The other
    /// values are those of [`TextSample`].
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
    /// Shows a value to later options of the list.
    pub fn share<T: Send + Sync + 'static>(&mut self, value: Arc<T>) {
        self.shared.push(value);
    }

    /// The value of type `T` that an earlier option of the list shows. `None`: none does.
    pub fn find<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let mut shared = self.shared.iter();
        shared.find_map(|value| value.clone().downcast().ok())
    }
}

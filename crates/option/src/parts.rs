//! The parts that options add to the gateway.

use crate::diagnosis::DiagnosisHooks;
use futures_util::future::BoxFuture;
use std::any::Any;
use std::sync::Arc;
use tokenweir_gateway::backend::BackendDrivers;
use tokenweir_gateway::backend::facets::PoolFacet;
use tokenweir_gateway::proxy::TextSample;
use tokenweir_gateway::proxy::extensions::Extensions;
use tokenweir_gateway::proxy::option::RequestOption;
use tokenweir_request::access::QuotaScope;
use tokenweir_request::observe::Sink;
use tokenweir_request::record::TextConsumer;

/// The parts that options add to the gateway, in the order of the options.
#[derive(Default)]
pub struct OptionParts {
    /// The steps of options on the path of a request.
    pub requests: Vec<Arc<dyn RequestOption>>,
    /// The values that options attach to the state of the proxy.
    pub extensions: Extensions,
    /// The sinks that get records in batches.
    pub sinks: Vec<Arc<dyn Sink>>,
    /// The sinks that get each record when its request ends.
    pub immediate_sinks: Vec<Arc<dyn Sink>>,
    /// The consumers of sampled prompts and responses.
    pub text_samples: Vec<TextSample>,
    /// Maximum length of the stored excerpt of each text, in bytes.
    pub max_text_bytes: usize,
    /// The parts of options that all backends of the pool share.
    pub pool_facets: Vec<Arc<dyn PoolFacet>>,
    /// The background work of options on backends.
    pub drivers: BackendDrivers,
    /// The hooks of options for the diagnosis.
    pub diagnosis: Vec<Arc<dyn DiagnosisHooks>>,
    /// Whether all gateways count limits together, or each one alone.
    pub quota_scope: QuotaScope,
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
        self.sinks.push(sink.clone());
        self.guards.push(Box::new(guard));
        sink
    }

    /// The consumer of the next sample of texts.
    pub fn next_text_consumer(&self) -> TextConsumer {
        TextConsumer::new(self.text_samples.len() as u8)
    }

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

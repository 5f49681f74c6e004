//! The parts of the gateway that options can bring.

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

/// What options bring, in their order.
#[derive(Default)]
pub struct OptionParts {
    /// What they do on the path of a request.
    pub requests: Vec<Arc<dyn RequestOption>>,
    /// What they attach to the state of the proxy.
    pub extensions: Extensions,
    /// The sinks that get records in batches.
    pub sinks: Vec<Arc<dyn Sink>>,
    /// The sinks that get each record when its request ends.
    pub immediate_sinks: Vec<Arc<dyn Sink>>,
    /// The samples of the texts of requests.
    pub text_samples: Vec<TextSample>,
    /// Maximum length of the stored excerpt of each text, in bytes.
    pub max_text_bytes: usize,
    /// What all backends of the pool share.
    pub pool_facets: Vec<Arc<dyn PoolFacet>>,
    /// What they do with backends in the background.
    pub drivers: BackendDrivers,
    /// What they tell the diagnosis, and learn from it.
    pub diagnosis: Vec<Arc<dyn DiagnosisHooks>>,
    /// Whether all gateways count limits together.
    pub quota_scope: QuotaScope,
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
        self.sinks.push(sink.clone());
        self.guards.push(Box::new(guard));
        sink
    }

    /// The consumer of the next sample of texts.
    pub fn next_text_consumer(&self) -> TextConsumer {
        TextConsumer::new(self.text_samples.len() as u8)
    }

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

//! The data with which the proxy serves requests: state that survives reloads, and settings that reloads
//! replace.

use super::access::AccessControl;
use super::admission::{AdmissionController, AdmissionSettings};
use super::extensions::Extensions;
use super::overload_guard::OverloadGuard;
use super::request::{BodyMemory, RequestSettings, TextSampling, features};
use super::retry::{RetryController, RetrySettings};
use super::stored_responses::StoredResponses;
use crate::backend::pool::{BackendPool, BackendRequirements};
use crate::telemetry::Telemetry;
use crate::telemetry::access_log::AccessLog;
use std::net::IpAddr;
use std::sync::Arc;
use tokenweir_net::client::HttpClient;
use tokenweir_protocol::atomic::AtomicFlag;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::{Api, RequestFields};
use tokenweir_protocol::trace_context::Propagation;
use tokenweir_request::observe::{ExchangeRegistry, ObservationSettings};
use tokenweir_request::record::RequestRecord;

/// The state and the settings with which the proxy serves requests. A reload replaces the context by a new one
/// with the same state and new settings.
pub struct ProxyContext {
    /// The state that survives reloads.
    pub state: ProxyState,
    /// Timeouts, body limits, routes and tiers.
    pub settings: RequestSettings,
    /// The HTTP client that sends requests to backends.
    pub backend_client: HttpClient,
    /// Decides whether failed requests are retried on other backends.
    pub retry: RetryController,
}

/// The state of the proxy that survives reloads. Clones share one state.
#[derive(Clone)]
pub struct ProxyState {
    /// The backends, and the policy that picks among them.
    pub pool: Arc<BackendPool>,
    /// API keys, permissions and CORS.
    pub access: Arc<AccessControl>,
    /// The backend and the tenant of each stored response.
    pub stored_responses: Arc<StoredResponses>,
    /// Admits requests to backends, or queues them.
    pub admission: Arc<AdmissionController>,
    /// Rejects requests while the gateway is overloaded.
    pub overload_guard: Arc<OverloadGuard>,
    /// Counts and limits the memory of all request bodies together.
    pub body_memory: Arc<BodyMemory>,
    /// All open exchanges, streamed or not.
    pub open_streams: Arc<ExchangeRegistry>,
    /// Consumes the records of all requests.
    pub telemetry: Arc<Telemetry>,
    /// The settings of optional data in records: trace context and sampled text.
    pub recording: RecordingSettings,
    /// The values that options attach to the state.
    pub extensions: Extensions,
    /// Whether the gateway drains: it shuts down and completes its open requests.
    pub draining: Arc<AtomicFlag>,
}

/// Settings of optional data about requests: log lines at the start of requests, trace context and sampled
/// text.
#[derive(Clone, Default)]
pub struct RecordingSettings {
    /// The access log, if it is configured to write a line at the start of each request.
    pub start_log: Option<Arc<AccessLog>>,
    /// Propagation of trace context. `None`: the gateway forwards the client's context unchanged.
    pub propagation: Option<Propagation>,
    /// Sampling of prompt and response text.
    pub text_sampling: TextSampling,
}

/// The settings of the proxy that a reload can change.
pub struct ProxySettings {
    /// Timeouts, body limits, routes and tiers.
    pub requests: RequestSettings,
    /// Attempts and budget of retries.
    pub retry: RetrySettings,
    /// Settings of admission control and its queue. `None`: admission control is disabled.
    pub admission: Option<AdmissionSettings>,
    /// Limit on the memory of all request bodies together, in bytes.
    pub body_memory_bytes: usize,
    /// Histogram bounds, stall threshold and similar settings of the observer.
    pub observation: ObservationSettings,
}

impl ProxyContext {
    /// The context at the start of the gateway.
    pub fn new(
        settings: ProxySettings,
        pool: Arc<BackendPool>,
        access: Arc<AccessControl>,
        stored_responses: Arc<StoredResponses>,
        overload_guard: Arc<OverloadGuard>,
        telemetry: Arc<Telemetry>,
        backend_client: HttpClient,
    ) -> Self {
        let state = ProxyState {
            admission: Arc::new(AdmissionController::new(pool.clone(), settings.admission)),
            pool,
            access,
            stored_responses,
            overload_guard,
            body_memory: Arc::new(BodyMemory::new(settings.body_memory_bytes)),
            open_streams: ExchangeRegistry::new(settings.observation, clock::now()),
            telemetry,
            recording: RecordingSettings::default(),
            extensions: Extensions::default(),
            draining: Arc::default(),
        };
        let retry = RetryController::new(settings.retry);
        Self {
            state,
            settings: settings.requests,
            backend_client,
            retry,
        }
    }

    /// The context after a reload. Observation, memory limits and admission belong to the shared state: their
    /// new settings take effect during this call, before the new context is used.
    #[must_use]
    pub fn reloaded(&self, settings: ProxySettings, backend_client: HttpClient) -> Self {
        // Naming all fields makes the compiler report a new setting that is missing here.
        let ProxySettings {
            requests,
            retry,
            admission,
            body_memory_bytes,
            observation,
        } = settings;
        self.state.open_streams.change(observation);
        self.state.body_memory.set_limit(body_memory_bytes);
        self.state.admission.update_settings(admission);
        let retry = self.retry.with_settings(retry);
        Self {
            state: self.state.clone(),
            settings: requests,
            backend_client,
            retry,
        }
    }
}

impl ProxyState {
    /// Number of open requests of a client that continue without a connection.
    pub(super) fn absent_requests(&self, client: IpAddr) -> usize {
        self.extensions
            .iter()
            .map(|value| value.absent_requests(client))
            .sum()
    }
}

impl RecordingSettings {
    /// Writes the log line at the start of the request, if it is enabled.
    pub(super) fn log_start(&self, record: &RequestRecord) {
        if let Some(log) = &self.start_log {
            log.on_start(record, clock::now());
        }
    }

    /// Stores the prompt hashes and the session of a request that generates text, and its text if a consumer
    /// samples it.
    pub(super) fn sample(
        &self,
        record: &mut RequestRecord,
        fields: &RequestFields,
        requirements: BackendRequirements<'_>,
        body: &[u8],
    ) {
        if !record.api.is_some_and(Api::generates) {
            return;
        }
        let BackendRequirements {
            prompt, session, ..
        } = requirements;
        record.fingerprint = Some(prompt.clone());
        record.session_hash = session;
        if !self.text_sampling.samples.is_empty() {
            features::sample_text(&self.text_sampling, fields, body, record);
        }
    }
}

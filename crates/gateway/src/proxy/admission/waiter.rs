//! A waiting request: its entry in the queue, and the channel for its lease.

use crate::backend::pool::{BackendRequirements, ExpectedWork};
use crate::backend::{Backend, Lease};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::address::BackendId;
use tokenweir_protocol::openai::TOKENS_PER_BYTE;
use tokenweir_request::error::GatewayError;
use tokenweir_request::record::RoutingDecision;
use tokenweir_routing::PromptFingerprint;
use tokenweir_routing::admission::{
    AdmissionQueue, CapacityGroup, EnqueueOutcome, QueuedRequest, QueuedRequestId, RejectedRequest,
};
use tokio::sync::oneshot;

/// A lease, and the decision that picked its backend.
pub type LeasedBackend = (Lease, Arc<RoutingDecision>);

/// The requirements of a request on its backend, without the model. Kept while the request waits or its stream
/// is open.
#[derive(Debug, Clone)]
pub struct OwnedRequirements {
    /// Length and block hashes of the prompt.
    pub prompt: Arc<PromptFingerprint>,
    is_stream: bool,
    backend: Option<BackendId>,
    path: Option<&'static str>,
    max_tokens: Option<u32>,
    choices: u32,
    longer_than: Option<u32>,
    excluded: Box<[Arc<Backend>]>,
    session: Option<u64>,
    seed: u64,
}

/// A queued request: its requirements, and the channel for its lease.
pub(super) struct LeaseWaiter {
    requirements: OwnedRequirements,
    /// The TTFT of the request in seconds without a wait.
    pub predicted_ttft: f64,
    /// Whether the gate need not decide, because it has admitted the request or the stream has begun.
    pub is_admitted: bool,
    result_sender: oneshot::Sender<WaitResult>,
}

/// The flow of a request in the fair queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    /// The index of the priority class. 0 takes precedence over all others.
    pub class: usize,
    pub tenant: u64,
}

/// The result of a request's wait, and the part of the wait in which no backend could serve the model.
pub(super) type WaitResult = (Result<LeasedBackend, GatewayError>, Duration);

/// The queue entry of a request, and the receiver of its lease or error. `work`: `None` if no backend is up.
pub(super) fn queue_entry(
    requirements: BackendRequirements<'_>,
    group: CapacityGroup,
    flow: Flow,
    work: Option<ExpectedWork>,
    deadline: Instant,
) -> (QueuedRequest<LeaseWaiter>, oneshot::Receiver<WaitResult>) {
    let (result_sender, result_receiver) = oneshot::channel();
    let payload = LeaseWaiter {
        requirements: OwnedRequirements::new(requirements),
        predicted_ttft: work.map_or(0.0, |work| work.ttft),
        is_admitted: false,
        result_sender,
    };
    // The fair queue charges the request for this prompt and its output.
    let prompt = requirements.prompt.tokens(TOKENS_PER_BYTE) as u64;
    let tokens = requirements.assumed_output().saturating_add(prompt);
    let request = QueuedRequest {
        class: flow.class,
        tenant: flow.tenant,
        group,
        tokens,
        work: work.map_or(tokens, |work| work.tokens),
        is_begun: false,
        gated_until: None,
        deadline,
        payload,
    };
    (request, result_receiver)
}

/// Queues a request, and sheds the request that it displaces, if any. Fails if the queue is full.
pub(super) fn enqueue(
    queue: &mut AdmissionQueue<LeaseWaiter>,
    request: QueuedRequest<LeaseWaiter>,
    now: Instant,
) -> Result<QueuedRequestId, GatewayError> {
    match queue.enter(request, now) {
        EnqueueOutcome::Waits(key) => Ok(key),
        EnqueueOutcome::QueuedDisplacing(key, displaced) => {
            let error = GatewayError::Shed {
                retry_after: displaced.retry_after,
            };
            displaced
                .ticket
                .payload
                .send_result(Err(error), displaced.without_backend);
            Ok(key)
        }
        EnqueueOutcome::Full(RejectedRequest { retry_after, .. }) => {
            Err(GatewayError::Saturated { retry_after })
        }
    }
}

pub(super) fn queued_requirements(request: &QueuedRequest<LeaseWaiter>) -> BackendRequirements<'_> {
    request
        .payload
        .requirements
        .of_model(request.group.model.as_deref())
}

impl OwnedRequirements {
    /// A copy of the requirements without the model.
    pub(super) fn new(requirements: BackendRequirements<'_>) -> Self {
        Self {
            prompt: requirements.prompt.clone(),
            is_stream: requirements.is_stream,
            backend: requirements.backend.cloned(),
            path: requirements.path,
            max_tokens: requirements.max_tokens,
            choices: requirements.choices,
            longer_than: requirements.longer_than,
            excluded: requirements.excluded.into(),
            session: requirements.session,
            seed: requirements.seed,
        }
    }

    pub(super) fn of_model<'a>(&'a self, model: Option<&'a str>) -> BackendRequirements<'a> {
        BackendRequirements {
            model,
            prompt: &self.prompt,
            is_stream: self.is_stream,
            backend: self.backend.as_ref(),
            path: self.path,
            max_tokens: self.max_tokens,
            choices: self.choices,
            longer_than: self.longer_than,
            excluded: &self.excluded,
            session: self.session,
            seed: self.seed,
        }
    }
}

impl LeaseWaiter {
    /// Sends the lease or the error to the waiting request. If the client has disconnected, the lease is
    /// dropped and thereby released.
    pub(super) fn send_result(
        self,
        result: Result<LeasedBackend, GatewayError>,
        without_backend: Duration,
    ) {
        drop(self.result_sender.send((result, without_backend)));
    }
}

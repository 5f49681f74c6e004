//! Decides whether the stream of a request can be continued, and keeps the memory that this needs.

use crate::memory::ContinuationMemory;
use crate::search::StreamContinuation;
use arc_swap::ArcSwap;
use bytes::Bytes;
use std::sync::Arc;
use tokenweir_gateway::proxy::admission::BegunStream;
use tokenweir_gateway::proxy::attempt::{AttemptFailure, AttemptStep, PreparedRequest};
use tokenweir_gateway::proxy::option::RequestOption;
use tokenweir_gateway::proxy::{BodySource, HeldBody, ReadRequest};
use tokenweir_protocol::headers;
use tokenweir_protocol::openai::Splice;
use tokenweir_protocol::openai::engine_control::FieldEdit;
use tokenweir_request::continuation::{
    ContinuationMode, ContinuationPlan, ContinuationRefusal, StreamSplicer,
};
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::FailoverDenialReason;

/// Whether and how streams are continued, and how much memory this may take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ContinuationSettings {
    /// How a stream of chat completions or completions goes on at another backend, if its backend ends
    /// it early, stalls, is drained with `migrate` or is removed.
    pub mode: ContinuationMode,
    /// Whether only streams with `temperature` 0 are continued. The continuation of a sampled stream
    /// differs from the output that the first backend would have sent.
    pub is_greedy_only: bool,
    /// Limit on the memory that streams keep for their continuation, in bytes.
    pub memory_bytes: usize,
}

/// Decides about the continuation of streams, with the settings of the last reload.
#[derive(Debug, Default)]
pub struct ContinuationStreams {
    pub(crate) settings: ArcSwap<ContinuationSettings>,
    pub(crate) memory: ContinuationMemory,
}

/// The continuation of the stream of one request. The exchange contains its data.
struct Continuation;

/// The request field of vLLM that requests the token ids of prompt and output.
const TOKEN_IDS_FIELD: &str = "return_token_ids";

impl ContinuationStreams {
    /// Number of bytes that all streams keep now for their continuation.
    pub fn used_bytes(&self) -> usize {
        self.memory.used_bytes()
    }
}

impl RequestOption for ContinuationStreams {
    /// Decides whether the stream of a request can be continued, and makes the exchange keep the necessary
    /// output. Adds an edit to `edits` if the body must request token ids.
    fn plan(
        &self,
        exchange: &mut Exchange,
        request: &ReadRequest<'_>,
        body: &HeldBody,
        edits: &mut Vec<FieldEdit>,
    ) -> Option<Box<dyn AttemptStep>> {
        if !request.fields.stream {
            return None;
        }
        let settings = **self.settings.load();
        let of_tenant = request
            .principal
            .key()
            .and_then(|key| key.tenant.continuation);
        let of_model = request.route.policy.continuation;
        let mode = of_tenant.or(of_model).unwrap_or(settings.mode);
        if mode == ContinuationMode::Off {
            return None;
        }
        let plan =
            ContinuationPlan::read(exchange.record().api, body, mode, settings.is_greedy_only);
        let plan = plan.and_then(|plan| check(plan, request, body, edits));
        let limits = self.memory.limits();
        let mut charge = self.memory.charge(body.party());
        let has_memory = plan.is_err() || charge.add(body.len(), &limits).is_ok();
        let mut splicer = StreamSplicer::new(plan, charge, limits);
        if !has_memory {
            splicer.refuse(ContinuationRefusal::Memory);
        }
        exchange.splice_streams(splicer);
        Some(Box::new(Continuation))
    }
}

impl AttemptStep for Continuation {
    /// Refuses to continue a failed response that the client already receives. It ends with the error event of
    /// the attempt.
    fn end_with_failure(
        &mut self,
        exchange: &mut Exchange,
        failure: &AttemptFailure,
        reason: FailoverDenialReason,
    ) {
        let is_success = failure
            .response()
            .is_some_and(|response| response.status().is_success());
        if is_success && exchange.is_spliced() {
            exchange.refuse_continuation(refusal_of(reason), true);
        }
    }

    fn body_source(
        &self,
        exchange: &Exchange,
        request: &PreparedRequest<'_>,
    ) -> Option<BodySource> {
        if !exchange.is_spliced() {
            return None;
        }
        Some(Box::new(StreamContinuation {
            context: request.context.clone(),
            head: request.head.clone(),
            body: if exchange.needs_body() {
                request.body.sent()
            } else {
                Bytes::new()
            },
            stream: Arc::new(BegunStream::new(*request.requirements)),
            response_headers_timeout: request.response_headers_timeout,
            interruption: None,
            failures: 0,
        }))
    }
}

/// Fails if another backend must not get the request, or must not get it with the fields that a continuation
/// needs.
fn check(
    plan: ContinuationPlan,
    request: &ReadRequest<'_>,
    body: &[u8],
    edits: &mut Vec<FieldEdit>,
) -> Result<ContinuationPlan, ContinuationRefusal> {
    if headers::has_body_digest(&request.head.headers) {
        return Err(ContinuationRefusal::SignedBody);
    }
    if request.fields.has_effects(body) {
        return Err(ContinuationRefusal::Stored);
    }
    if plan.adds_token_ids() {
        let splice = Splice::insert(body, &format!(r#""{TOKEN_IDS_FIELD}":true"#));
        let splice = splice.ok_or(ContinuationRefusal::Unreadable)?;
        edits.push(FieldEdit {
            field: TOKEN_IDS_FIELD,
            splice,
        });
    }
    Ok(plan)
}

const fn refusal_of(reason: FailoverDenialReason) -> ContinuationRefusal {
    match reason {
        FailoverDenialReason::PoisonRequest => ContinuationRefusal::PoisonRequest,
        FailoverDenialReason::NoOtherBackend => ContinuationRefusal::NoOtherBackend,
        FailoverDenialReason::NotRetryable
        | FailoverDenialReason::SideEffects
        | FailoverDenialReason::RetryBudget
        | FailoverDenialReason::MaxAttempts => ContinuationRefusal::MaxAttempts,
    }
}

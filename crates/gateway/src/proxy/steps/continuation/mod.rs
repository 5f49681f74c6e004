//! Lets another backend continue the stream of a request after an interruption: whether it can, the memory
//! that this needs, and what continues the stream.

mod search;

use crate::proxy::admission::BegunStream;
use crate::proxy::attempt::{AttemptFailure, PreparedRequest};
use crate::proxy::request::body_memory::HeldBody;
use crate::proxy::request::continuation_memory::ContinuationMemory;
use crate::proxy::request::read_request::ReadRequest;
use crate::proxy::response::Continuer;
use bytes::Bytes;
use search::StreamContinuation;
use std::sync::Arc;
use tokenweir_protocol::headers;
use tokenweir_protocol::openai::Splice;
use tokenweir_protocol::openai::engine_control::FieldEdit;
use tokenweir_request::continuation::{
    ContinuationMode, ContinuationPlan, ContinuationRefusal, StreamSplicer,
};
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::FailoverDenialReason;

/// The continuation of the stream of one request, before it has begun.
#[derive(Default)]
pub(super) struct Continuation {
    /// How the stream can be continued, or why not. `None`: continuation is off, the response is no stream,
    /// or the exchange has the plan.
    plan: Option<Result<ContinuationPlan, ContinuationRefusal>>,
}

/// The request field of vLLM that requests the token ids of prompt and output.
const TOKEN_IDS_FIELD: &str = "return_token_ids";

impl Continuation {
    /// Decides whether the stream of a request can be continued. Adds an edit to `edits` if the body must
    /// request token ids for this.
    pub(super) fn plan(
        exchange: &mut Exchange,
        request: &ReadRequest<'_>,
        body: &[u8],
        edits: &mut Vec<FieldEdit>,
    ) -> Self {
        let rules = exchange.policy().rules;
        let of_tenant = request.principal.key().and_then(|key| key.tenant.continuation);
        let of_model = request.route.policy.continuation;
        let mode = of_tenant.or(of_model).unwrap_or(rules.continuation);
        if mode == ContinuationMode::Off || !request.fields.stream {
            return Self::default();
        }
        let is_greedy_only = rules.continuation_greedy_only;
        let plan = ContinuationPlan::read(exchange.record().api, body, mode, is_greedy_only);
        Self { plan: Some(plan.and_then(|plan| check(plan, request, body, edits))) }
    }

    /// Makes the exchange keep the output that a continuation needs.
    pub(super) fn begin(
        &mut self,
        exchange: &mut Exchange,
        memory: &ContinuationMemory,
        body: &HeldBody,
    ) {
        let Some(plan) = self.plan.take() else { return };
        let limits = memory.limits();
        let mut charge = memory.charge(body.party());
        let has_memory = plan.is_err() || charge.add(body.len(), &limits).is_ok();
        let mut splicer = StreamSplicer::new(plan, charge, limits);
        if !has_memory {
            splicer.refuse(ContinuationRefusal::Memory);
        }
        exchange.splice_streams(splicer);
    }
}

/// Fails if another backend must not get the request, or not with the fields that a continuation needs.
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
        edits.push(FieldEdit { field: TOKEN_IDS_FIELD, splice });
    }
    Ok(plan)
}

/// Refuses the continuation of a response that the client gets although its attempt failed: it ends with the
/// error event of the attempt.
pub(super) fn end_with_failure(
    exchange: &mut Exchange,
    failure: &AttemptFailure,
    reason: FailoverDenialReason,
) {
    let is_success = failure.response().is_some_and(|response| response.status().is_success());
    if is_success && exchange.is_spliced() {
        exchange.refuse_continuation(refusal_of(reason), true);
    }
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

/// What continues the stream of a response that has begun. `None`: it cannot be continued.
pub(super) fn continuer(exchange: &Exchange, request: PreparedRequest<'_>) -> Option<Continuer> {
    if !exchange.is_spliced() {
        return None;
    }
    let requirements = request.requirements;
    let stream = BegunStream {
        model: requirements.model.map(Into::into),
        prompt: requirements.prompt.clone(),
        path: requirements.path,
        max_tokens: requirements.max_tokens,
        session: requirements.session,
    };
    Some(Box::new(StreamContinuation {
        context: request.context.clone(),
        head: request.head.clone(),
        body: if exchange.needs_body() { request.body.into_sent() } else { Bytes::new() },
        stream: Arc::new(stream),
        response_headers_timeout: request.response_headers_timeout,
        interruption: None,
        failures: 0,
    }))
}

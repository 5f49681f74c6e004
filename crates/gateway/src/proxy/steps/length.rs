//! Requests that a backend refuses because they are longer than the context of the model there.

use crate::backend::Lease;
use crate::proxy::attempt::first_output::{contains_any, refused_tokens};
use crate::proxy::attempt::{Attempts, FailedAttempt, PreparedRequest};
use crate::proxy::response::PrefetchedResponse;
use tokenweir_protocol::clock;
use tokenweir_routing::resilience::FailureKind;

/// Texts in errors about the length of a request. In this order: vLLM and SGLang; vLLM if the error is about
/// `max_tokens` alone; llama.cpp.
const LENGTH_MESSAGES: [&[u8]; 3] = [b"context length", b"max_model_len", b"context size"];

/// Recognizes a refusal because of the length, and learns from it. Only a backend with a longer context can
/// then serve the request.
pub(super) fn name_failure(attempts: &mut Attempts<'_>, failed: &mut FailedAttempt) {
    let request = attempts.request;
    if failed.failure.kind == FailureKind::UnexpectedStatus
        && let Some(response) = failed.failure.response()
        && contains_any(response.body(), &LENGTH_MESSAGES)
        && let Some(context) = request
            .context
            .state
            .pool
            .model_length(request.requirements.model, failed.lease.backend())
    {
        learn(request, &failed.lease, response, context);
        attempts.longer_than = Some(context);
        failed.failure.set_kind(FailureKind::TooLong);
    }
}

/// Learns the number of prompt tokens from the response of a backend that refused the prompt for its context
/// length.
fn learn(
    request: &PreparedRequest<'_>,
    lease: &Lease,
    response: &PrefetchedResponse,
    context: u32,
) {
    let prompt = request.requirements.prompt;
    if prompt.media > 0 {
        return;
    }
    let max_tokens = request.requirements.max_tokens.unwrap_or(0);
    let exceeded = u64::from(context.saturating_sub(max_tokens)) + 1;
    let tokens = refused_tokens(response.body()).unwrap_or(0).max(exceeded);
    let learned = lease.backend().load.estimator.learned();
    learned.on_too_long(prompt.bytes, tokens, clock::now());
}

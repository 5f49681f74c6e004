//! Requests that a backend refuses because they are longer than the context of the model there.

use super::attempt::PreparedRequest;
use super::attempt_failure::AttemptFailure;
use super::first_output::{self, contains_any};
use crate::backend::Lease;
use crate::backend::pool::BackendRequirements;
use tokenweir_net::backend_body::BackendBody;
use tokenweir_protocol::clock;
use tokenweir_request::observe::PrefetchedBody;

/// Texts in errors about the length of a request. In this order: of vLLM and SGLang, of vLLM if the error
/// is about `max_tokens` alone, of llama.cpp.
const LENGTH_MESSAGES: [&[u8]; 3] = [b"context length", b"max_model_len", b"context size"];

/// Whether an error response is about the length of the request, and the context length of the backend is
/// known.
pub(super) fn is_about_length(
    prefetched: &PrefetchedBody<BackendBody>,
    (request, lease): (&PreparedRequest<'_>, &Lease),
) -> bool {
    contains_any(prefetched, &LENGTH_MESSAGES) && context_length(request, lease).is_some()
}

/// Learns from a response in which the backend refused the length of the request. Returns the context length
/// of the backend. Only backends with a longer context can help.
pub(super) fn learn(
    failure: &AttemptFailure,
    (request, lease): (&PreparedRequest<'_>, &Lease),
) -> Option<u32> {
    let context = context_length(request, lease);
    let prompt = request.requirements.prompt;
    let max_tokens = request.requirements.max_tokens.unwrap_or(0);
    let exceeded = context.map(|context| u64::from(context.saturating_sub(max_tokens)) + 1);
    let response = failure.fallback.as_ref().ok();
    let stated = response.and_then(|it| first_output::refused_tokens(it.body()));
    if let Some(tokens) = stated.max(exceeded).filter(|_| prompt.media == 0) {
        let learned = lease.backend().load.estimator.learned();
        learned.on_too_long(prompt.bytes, tokens, clock::now());
    }
    context
}

/// Whether a backend of the model with a longer context may serve the request when it is available.
pub(super) fn has_longer_backend(request: &PreparedRequest<'_>, longer_than: Option<u32>) -> bool {
    let requirements = BackendRequirements { longer_than, ..*request.requirements };
    request.context.state.pool.has_able_backend(&requirements)
}

fn context_length(request: &PreparedRequest<'_>, lease: &Lease) -> Option<u32> {
    request.context.state.pool.model_length(request.requirements.model, lease.backend())
}

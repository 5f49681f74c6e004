//! Keeps the refusals of a request while the gateway asks peers of the refusing backend. A status such as
//! 400 or 401 does not show whether client or backend is the cause. If a peer answers with success, the
//! refusals are failures of their backends. If the peers refuse too, the client is the cause, and gets the
//! most useful one of the refusals.

use crate::backend::{Backend, MEDIA};
use crate::proxy::attempt::first_output::contains_any;
use crate::proxy::attempt::{AttemptFailure, Attempts, FailedAttempt, Next};
use crate::proxy::response::PrefetchedResponse;
use crate::proxy::retry::RetryController;
use crate::proxy::retry::peer_answers::{PeerAnswers, RefusalSlot};
use http::StatusCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_protocol::clock;
use tokenweir_request::observe::{AttemptAside, Exchange};
use tokenweir_request::record::{FailoverDenialReason, RoutingDecision};
use tokenweir_routing::resilience::FailureKind;

/// The responses in which backends refused one request, so far.
#[derive(Default)]
pub(super) struct Refusals {
    refused: Vec<Refusal>,
    /// The response that the client gets if no peer answers with success. `None`: no response was set
    /// aside.
    held: Option<Box<HeldResponse>>,
}

/// The response of a refused attempt, which the client gets if no peer answers with success.
struct HeldResponse {
    aside: AttemptAside,
    response: PrefetchedResponse,
    decision: Option<Arc<RoutingDecision>>,
}

struct Refusal {
    backend: Arc<Backend>,
    /// The id of the trace span of the attempt, which identifies the attempt in the record.
    span_id: u64,
    kind: FailureKind,
    status: u16,
    rest: Option<Duration>,
    /// The feature that the backend lacks according to the response: the path, or media in prompts. `None`: the
    /// response shows neither.
    lacks: Option<&'static str>,
    slot: RefusalSlot,
}

/// Words that show that an error is about media, whatever engine writes the error. The error counts as
/// one about media only if a peer serves the same request.
const MEDIA_WORDS: [&[u8]; 8] = [
    b"image",
    b"Image",
    b"audio",
    b"Audio",
    b"video",
    b"Video",
    b"ultimodal",
    b"ulti-modal",
];

impl Refusals {
    /// Records a failure that only the answer of a peer can explain. If peers recently refused such requests
    /// too, most of them end here.
    pub(super) fn after_failure(
        &mut self,
        exchange: &mut Exchange,
        attempts: &Attempts<'_>,
        failed: &FailedAttempt,
    ) -> Next {
        let Some(refusal) = Refusal::new(exchange, attempts, failed) else {
            return Next::Failover;
        };
        let slot = refusal.slot;
        self.refused.push(refusal);
        let peer_answers = &attempts.request.context.retry.peer_answers;
        if peer_answers.should_ask(slot, fastrand::f32(), clock::now()) {
            return Next::Failover;
        }
        Next::End(FailoverDenialReason::NotRetryable)
    }

    /// Sets the response of the refused attempt aside before a failover, unless an earlier one is
    /// more useful to the client.
    pub(super) fn set_aside(&mut self, exchange: &mut Exchange, failure: AttemptFailure) {
        let decision = exchange.record().decision.clone();
        let aside = exchange.set_attempt_aside(failure.kind.as_str());
        let Ok(response) = failure.fallback else {
            return;
        };
        if self.is_more_useful(response.status()) {
            self.held = Some(Box::new(HeldResponse {
                aside,
                response,
                decision,
            }));
        }
    }

    /// Whether a response with this status is more useful to the client than the stored one. A refusal about
    /// the content of the request is more useful than one about its credentials or the load.
    fn is_more_useful(&self, status: StatusCode) -> bool {
        let is_about_content = |status: StatusCode| {
            FailureKind::of_refusal(status.as_u16()) == FailureKind::UnexpectedStatus
        };
        let Some(held) = &self.held else { return true };
        is_about_content(status) && !is_about_content(held.response.status())
    }

    /// Ends the request with the response of the last attempt. If it contains an error event, it is treated as
    /// a refusal.
    pub(super) fn end_with_response(&self, exchange: &mut Exchange, retry: &RetryController) {
        if self.refused.is_empty() {
            return;
        }
        let now = clock::now();
        let observer = exchange.observer();
        let is_success = observer.is_none_or(|observer| observer.observed().error.is_none());
        if !is_success {
            self.blame_client(exchange, retry, now);
            return;
        }
        for refusal in &self.refused {
            retry.peer_answers.learn(refusal.slot, true, now);
            refusal.apply(now);
            if let Some(lacks) = refusal.lacks {
                refusal.backend.on_unserved(lacks, refusal.status, now);
            }
        }
    }

    /// Ends the request without a success. `failure` is that of the last attempt. Returns the
    /// response that the client gets instead of the result of that attempt. `None`: the client gets
    /// the result of that attempt.
    pub(super) fn end_with_failure(
        &mut self,
        exchange: &mut Exchange,
        failure: &AttemptFailure,
        retry: &RetryController,
    ) -> Option<PrefetchedResponse> {
        self.blame_client(exchange, retry, clock::now());
        let last = if failure.is_refusal() {
            failure.response()
        } else {
            None
        };
        if last.is_some_and(|response| self.is_more_useful(response.status())) {
            return None;
        }
        let held = self.held.take()?;
        if last.is_none() {
            exchange.discard_attempt(failure.kind.as_str());
        }
        exchange.restore_attempt(held.aside);
        exchange.record().decision = held.decision;
        Some(held.response)
    }

    /// Removes the failures of the refused attempts from the record, because no backend answered
    /// differently. Two kinds of failures stay: a backend does not know a model that it lists, or it
    /// refuses the credential of the configuration.
    fn blame_client(&self, exchange: &mut Exchange, retry: &RetryController, now: Instant) {
        let is_compared = exchange.record().attempts.len() > 1;
        for refusal in &self.refused {
            if is_compared {
                retry.peer_answers.learn(refusal.slot, false, now);
            }
            let mut attempts = exchange.record().attempts.iter_mut();
            let Some(attempt) = attempts.find(|attempt| attempt.span_id == refusal.span_id) else {
                continue;
            };
            if refusal.is_of_gateways_credential() {
                attempt.failure = Some(refusal.kind.as_str());
                refusal.apply(now);
            } else if refusal.kind != FailureKind::UnknownModel {
                attempt.failure = None;
            }
        }
    }
}

impl Refusal {
    /// Reads the refusal from a failed attempt. `None`: the failure is no refusal.
    fn new(
        exchange: &mut Exchange,
        attempts: &Attempts<'_>,
        failed: &FailedAttempt,
    ) -> Option<Self> {
        let failure = &failed.failure;
        if !failure.is_refusal() {
            return None;
        }
        let response = failure.response()?;
        let status = response.status().as_u16();
        let backend = failed.lease.backend().clone();
        let record = exchange.record();
        let has_media = attempts.request.requirements.prompt.media > 0;
        let lacks = if has_media && contains_any(response.body(), &MEDIA_WORDS) {
            Some(MEDIA)
        } else {
            record.route.filter(|path| is_about_path(response, path))
        };
        Some(Self {
            span_id: record.attempts.last().map_or(0, |attempt| attempt.span_id),
            kind: failure.kind,
            status,
            rest: failure.rest,
            lacks,
            slot: PeerAnswers::slot(attempts.share.0, backend.identity.id_hash, status),
            backend,
        })
    }

    /// Counts the refusal as a failure of its backend, for the circuit breaker.
    fn apply(&self, now: Instant) {
        let why = format!(
            "{}: the backend answered {}",
            self.kind.as_str(),
            self.status
        );
        self.backend.on_failure(self.kind, &why, self.rest, now);
    }

    /// Whether the backend refused the credential of the configuration, which no client can change.
    fn is_of_gateways_credential(&self) -> bool {
        self.kind == FailureKind::Unauthorized && self.backend.identity.authorization.is_some()
    }
}

/// Whether a refusal is about the path of the request. If an item of an API is missing, such as an
/// adapter, the 404 has an error object that names the item. If the server lacks the path, the 404 has no
/// error object, or names the path.
fn is_about_path(response: &PrefetchedResponse, path: &str) -> bool {
    if FailureKind::of_refusal(response.status().as_u16()) != FailureKind::MissingPath {
        return false;
    }
    let has = |text: &[u8]| contains_any(response.body(), &[text]);
    response.status() != StatusCode::NOT_FOUND || !has(b"\"error\"") || has(path.as_bytes())
}

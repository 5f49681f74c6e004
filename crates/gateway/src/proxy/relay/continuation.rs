//! Continues a stream at another backend, after output was sent to the client.

use super::attempt;
use super::attempt_failure::send_failure;
use crate::backend::pool::BackendRequirements;
use crate::backend::{Backend, Lease};
use crate::proxy::context::ProxyContext;
use bytes::Bytes;
use http::{Response, StatusCode, request};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokenweir_net::backend_body::BackendBody;
use tokenweir_net::client::SendError;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::is_event_stream;
use tokenweir_request::access::ConcurrencyPermit;
use tokenweir_request::continuation::{ContinuationRefusal, InterruptionCause};
use tokenweir_request::observe::{Continue, Exchange};
use tokenweir_routing::PromptFingerprint;
use tokenweir_routing::resilience::FailureKind;

/// The values of a request with which the gateway continues its stream at another backend.
pub(crate) struct StreamContinuation {
    pub(crate) context: Arc<ProxyContext>,
    pub(crate) head: request::Parts,
    /// The request body that the first backend got.
    pub(crate) body: Bytes,
    /// The hash of the body that the client sent.
    pub(crate) body_hash: u64,
    pub(crate) model: Option<String>,
    pub(crate) prompt: Arc<PromptFingerprint>,
    // The requirements of the request on a backend. The continuation requires the same.
    pub(crate) path: Option<&'static str>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) session: Option<u64>,
    pub(crate) response_headers_timeout: Option<Duration>,
    /// The interruption that is being handled. `None`: the stream is not interrupted.
    pub(crate) interrupted: Option<Interruption>,
    /// Number of interruptions of the stream by a failure of its backend so far.
    pub(crate) failures: u32,
}

/// The state of an interrupted stream, which another backend shall continue.
pub(crate) struct Interruption {
    at: Instant,
    /// The backends that are not tried again: the backend whose stream was interrupted, and those
    /// that were asked and did not continue the stream.
    tried: Vec<Arc<Backend>>,
    sending: Option<Sending>,
}

struct Sending {
    lease: Lease,
    response: Pin<Box<dyn Future<Output = Result<Response<BackendBody>, SendError>> + Send>>,
}

/// Maximum number of backends to which the gateway sends the request for one continuation.
const MAX_ASKED_BACKENDS: usize = 3;

impl Continue<BackendBody, (Lease, Option<ConcurrencyPermit>)> for StreamContinuation {
    fn poll_continue(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        guard: &mut (Lease, Option<ConcurrencyPermit>),
        cause: InterruptionCause,
    ) -> Poll<Option<BackendBody>> {
        loop {
            let sending = self.interrupted.as_mut().and_then(|it| it.sending.as_mut());
            let Some(sending) = sending else {
                if let Err(reason) = self.send(exchange, guard.0.backend(), cause) {
                    self.give_up(exchange, guard.0.backend(), reason, cause);
                    return Poll::Ready(None);
                }
                continue;
            };
            let result = ready!(sending.response.as_mut().poll(cx));
            let Some(interrupted) = &mut self.interrupted else { continue };
            let Some(Sending { lease, .. }) = interrupted.sending.take() else { continue };
            if let Some(body) = continuing_body(exchange, &lease, result) {
                let interrupted_at = interrupted.at;
                self.interrupted = None;
                report_failure(exchange, guard.0.backend(), cause, 1);
                exchange.continue_at(lease.backend_feedback(), cause, interrupted_at);
                guard.0 = lease;
                return Poll::Ready(Some(body));
            }
            interrupted.tried.push(lease.backend().clone());
        }
    }
}

impl StreamContinuation {
    /// Sends the request that continues the stream to the next backend. The error is the reason why
    /// the stream is not continued.
    fn send(
        &mut self,
        exchange: &mut Exchange,
        from: &Arc<Backend>,
        cause: InterruptionCause,
    ) -> Result<(), ContinuationRefusal> {
        let now = clock::now();
        let body = exchange.continuation_request(&self.body)?;
        let is_first = self.interrupted.is_none();
        if is_first && cause != InterruptionCause::Migrated {
            self.failures += 1;
            let crashed = failure_of(cause).filter(|kind| kind.is_crash()).map(|_| self.body_hash);
            self.context.retry.allow_continuation(crashed, self.failures, now)?;
        }
        let interrupted = self.interrupted.get_or_insert_with(|| Interruption {
            at: now,
            tried: vec![from.clone()],
            sending: None,
        });
        if interrupted.tried.len() > MAX_ASKED_BACKENDS {
            return Err(ContinuationRefusal::MaxAttempts);
        }
        let requirements = BackendRequirements {
            model: self.model.as_deref(),
            is_stream: true,
            path: self.path,
            max_tokens: self.max_tokens,
            session: self.session,
            ..BackendRequirements::none(&self.prompt, fastrand::u64(..))
        };
        let leased = self.context.state.pool.lease(requirements, &interrupted.tried, now);
        let (lease, decision) = leased.map_err(|_| ContinuationRefusal::NoOtherBackend)?;
        let record = exchange.record();
        record.decision = Some(decision);
        let (attempt, response) = attempt::send_apart(
            &self.context.backend_client,
            record,
            &lease,
            (&self.head, &self.prompt),
            &body,
            self.response_headers_timeout,
        );
        record.attempts.push(attempt);
        interrupted.sending = Some(Sending { lease, response: Box::pin(response) });
        Ok(())
    }

    /// Gives up the continuation. If only the end of the stream is missing, the gateway writes the
    /// end. Otherwise the stream ends as a stream without continuation does. A stream that was to be
    /// moved from a working backend (`Migrated`) continues on that backend.
    fn give_up(
        &mut self,
        exchange: &mut Exchange,
        backend: &Backend,
        reason: ContinuationRefusal,
        cause: InterruptionCause,
    ) {
        let is_final = cause != InterruptionCause::Migrated;
        let reason = match cause {
            InterruptionCause::Diverged => ContinuationRefusal::Diverged,
            _ if is_final && exchange.complete_stream() => {
                report_failure(exchange, backend, cause, 0);
                ContinuationRefusal::Completed
            }
            _ => reason,
        };
        exchange.refuse_continuation(reason, is_final);
        // The attempt whose response the client got must be the last one in the record.
        let asked = self.interrupted.take().map_or(0, |interrupted| interrupted.tried.len() - 1);
        let attempts = &mut exchange.record().attempts;
        if let Some(start) = attempts.len().checked_sub(asked + 1) {
            attempts[start..].rotate_left(1);
        }
    }
}

/// The body of a response that continues a stream. `None`: the response does not continue the
/// stream, so the attempt has failed.
fn continuing_body(
    exchange: &mut Exchange,
    lease: &Lease,
    result: Result<Response<BackendBody>, SendError>,
) -> Option<BackendBody> {
    let now = clock::now();
    let (status, kind) = match result {
        Ok(response) => {
            let status = response.status();
            if status == StatusCode::OK && is_event_stream(response.headers()) {
                lease.backend().on_response_started(now);
                if let Some(attempt) = exchange.record().attempts.last_mut() {
                    attempt.status = Some(status.as_u16());
                }
                return Some(response.into_body());
            }
            (Some(status.as_u16()), FailureKind::of_status(status.as_u16()))
        }
        Err(error) => (None, send_failure(&error).kind),
    };
    // The request that continues a stream differs from that of the client, so a refusal does not
    // show a fault of the backend.
    if !kind.is_judged_by_peers() {
        lease.backend().on_failure(kind, kind.as_str(), None, now);
    }
    if let Some(attempt) = exchange.record().attempts.last_mut() {
        attempt.status = status;
        attempt.ended.get_or_insert(now);
        attempt.failure = Some(kind.as_str());
    }
    None
}

/// Reports the failure of the backend whose stream was continued or completed, in the record and to
/// its circuit breaker. `later`: number of attempts to skip at the end of the record, because they belong
/// to the continuation.
fn report_failure(
    exchange: &mut Exchange,
    backend: &Backend,
    cause: InterruptionCause,
    later: usize,
) {
    let now = clock::now();
    let failure = failure_of(cause);
    let attempts = &mut exchange.record().attempts;
    let of_backend = attempts
        .iter_mut()
        .rev()
        .skip(later)
        .find(|attempt| attempt.backend == backend.identity.id && attempt.ended.is_none());
    if let Some(attempt) = of_backend {
        attempt.ended = Some(now);
        attempt.failure = failure.map(FailureKind::as_str);
    }
    if let Some(failure) = failure.filter(|_| cause != InterruptionCause::Diverged) {
        backend.on_failure(failure, failure.as_str(), None, now);
    }
}

/// The failure of the backend that interrupted the stream. `None`: the backend did not fail.
const fn failure_of(cause: InterruptionCause) -> Option<FailureKind> {
    match cause {
        InterruptionCause::Died => Some(FailureKind::Died),
        InterruptionCause::Stalled => Some(FailureKind::SlowOutput),
        InterruptionCause::Aborted => Some(FailureKind::Draining),
        InterruptionCause::EngineFailed => Some(FailureKind::InBandError),
        InterruptionCause::Diverged => Some(FailureKind::Garbage),
        InterruptionCause::Migrated => None,
    }
}

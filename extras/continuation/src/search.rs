//! Continues a stream at another backend after the client has already received output.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{StatusCode, request};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokenweir_gateway::backend::{Backend, Lease};
use tokenweir_gateway::proxy::admission::{BegunStream, BegunWait, LeasedBackend};
use tokenweir_gateway::proxy::attempt::{self, AttemptFailure, OutboundRequest};
use tokenweir_gateway::proxy::{ProxyContext, ResponseGuard, retry};
use tokenweir_net::backend_body::{BackendBody, BackendResponse};
use tokenweir_net::client::SendError;
use tokenweir_protocol::clock;
use tokenweir_protocol::headers::is_event_stream;
use tokenweir_request::continuation::{ContinuationRefusal, InterruptionCause};
use tokenweir_request::error::GatewayError;
use tokenweir_request::observe::{Continue, Exchange, Interrupted};
use tokenweir_routing::resilience::FailureKind;

/// The values of a request with which the gateway continues its stream at another backend.
pub(crate) struct StreamContinuation {
    pub(crate) context: Arc<ProxyContext>,
    pub(crate) head: request::Parts,
    /// The request body that the first backend got.
    pub(crate) body: Bytes,
    /// The requirements of the request for a backend. The continuing backend must meet them too.
    pub(crate) stream: Arc<BegunStream>,
    pub(crate) response_headers_timeout: Option<Duration>,
    /// The interruption that is being handled. `None`: the stream is not interrupted.
    pub(crate) interruption: Option<Interruption>,
    /// Number of interruptions of the stream by a failure of its backend so far.
    pub(crate) failures: u32,
}

/// The state of an interrupted stream that another backend is to continue.
pub(crate) struct Interruption {
    at: Instant,
    /// The end of the search for another backend. `None`: the stream does not wait for capacity.
    ends_at: Option<Instant>,
    /// The backends that are not tried again: the backend whose stream was interrupted, and the backends that
    /// did not continue it.
    tried: Vec<Arc<Backend>>,
    /// Number of requests that were sent to continue the stream.
    asked: usize,
    step: Step,
}

/// The current step of the search for a backend that continues a stream.
enum Step {
    /// Lease the next backend after this pause.
    Begin(Duration),
    Leasing(BoxFuture<'static, Result<LeasedBackend, GatewayError>>),
    Sending(
        Lease,
        BoxFuture<'static, Result<BackendResponse, SendError>>,
    ),
}

/// Maximum number of backends to which the gateway sends the request for one continuation. A backend that
/// answers that it is busy does not count.
const MAX_ASKED_BACKENDS: usize = 3;
/// Time after which a busy backend is asked again.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

impl Continue<BackendBody, ResponseGuard> for StreamContinuation {
    fn poll_continue(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        guard: &mut ResponseGuard,
        interrupted: Interrupted,
    ) -> Poll<Option<BackendBody>> {
        match ready!(self.poll_search(cx, exchange, guard.lease.backend(), interrupted)) {
            Ok(continued) => {
                report_failure(exchange, guard.lease.backend(), interrupted, 1);
                let prompt = self.stream.requirements.prompt.whole;
                if failure_of(interrupted).is_some() {
                    guard.lease.backend().health.on_cut(prompt, clock::now());
                }
                let backend = continued.lease.backend_feedback();
                exchange.continue_at(backend, interrupted.cause, continued.since);
                guard.lease = continued.lease;
                Poll::Ready(Some(continued.body))
            }
            Err(reason) => {
                self.give_up(exchange, guard.lease.backend(), reason, interrupted);
                Poll::Ready(None)
            }
        }
    }
}

/// The response that continues a stream.
struct Continued {
    lease: Lease,
    body: BackendBody,
    /// When the stream was interrupted.
    since: Instant,
}

impl StreamContinuation {
    /// Polls the search for a backend that continues the stream of `from`. The error is the reason why no
    /// backend continues the stream.
    fn poll_search(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        from: &Arc<Backend>,
        interrupted: Interrupted,
    ) -> Poll<Result<Continued, ContinuationRefusal>> {
        loop {
            let Some(interruption) = &mut self.interruption else {
                self.begin(exchange, from, interrupted)?;
                continue;
            };
            match &mut interruption.step {
                Step::Begin(pause) => {
                    let pause = *pause;
                    self.lease(exchange, pause)?;
                }
                Step::Leasing(leasing) => {
                    let leased =
                        ready!(leasing.as_mut().poll(cx)).map_err(|error| refusal_of(&error))?;
                    self.send(exchange, leased)?;
                }
                Step::Sending(_, sending) => {
                    let result = ready!(sending.as_mut().poll(cx));
                    if let Some(continued) = self.on_response(exchange, result) {
                        return Poll::Ready(Ok(continued));
                    }
                }
            }
        }
    }

    /// Begins to handle an interruption, if the stream may be continued.
    fn begin(
        &mut self,
        exchange: &mut Exchange,
        from: &Arc<Backend>,
        interrupted: Interrupted,
    ) -> Result<(), ContinuationRefusal> {
        let now = clock::now();
        exchange.splicer()?.check()?;
        if let Some(kind) = failure_of(interrupted) {
            self.failures += 1;
            let backend = &from.identity.id;
            if retry::is_poison(exchange.record(), backend, kind, now) {
                return Err(ContinuationRefusal::PoisonRequest);
            }
            // The number of continuations per second needs no limit, because they wait for the capacity of the
            // other backends.
            if self.failures > self.context.retry.settings.attempts {
                return Err(ContinuationRefusal::MaxAttempts);
            }
        }
        let may_wait = interrupted.cause != InterruptionCause::Migrated;
        let ends_at = may_wait.then(|| self.context.state.admission.begun_deadline(now));
        self.interruption = Some(Interruption {
            at: now,
            ends_at,
            tried: vec![from.clone()],
            asked: 0,
            step: Step::Begin(Duration::ZERO),
        });
        Ok(())
    }

    /// Begins to lease the next backend, after `pause`.
    fn lease(
        &mut self,
        exchange: &mut Exchange,
        pause: Duration,
    ) -> Result<(), ContinuationRefusal> {
        let Some(interruption) = &mut self.interruption else {
            return Ok(());
        };
        if interruption.tried.len() > MAX_ASKED_BACKENDS {
            return Err(ContinuationRefusal::MaxAttempts);
        }
        if interruption
            .ends_at
            .is_some_and(|ends_at| clock::now() >= ends_at)
        {
            return Err(ContinuationRefusal::Capacity);
        }
        let wait = BegunWait {
            stream: self.stream.clone(),
            excluded: interruption.tried.clone(),
            pause,
            ends_at: interruption.ends_at,
        };
        let admission = &self.context.state.admission;
        let leasing = admission.lease_begun(exchange.record(), &self.head.headers, wait);
        interruption.step = Step::Leasing(Box::pin(leasing));
        Ok(())
    }

    /// Sends the request that continues the stream to the leased backend.
    fn send(
        &mut self,
        exchange: &mut Exchange,
        leased: LeasedBackend,
    ) -> Result<(), ContinuationRefusal> {
        let (lease, decision) = leased;
        let body = exchange.splicer()?.request(&self.body)?;
        let record = exchange.record();
        record.decision = Some(decision);
        let outbound = OutboundRequest {
            head: &self.head,
            prompt: &self.stream.requirements.prompt,
            body: &body,
            headers_timeout: self.response_headers_timeout,
        };
        let client = &self.context.backend_client;
        let (attempt, response) = attempt::send_apart(client, record, &lease, &outbound);
        record.attempts.push(attempt);
        if let Some(interruption) = &mut self.interruption {
            interruption.asked += 1;
            interruption.step = Step::Sending(lease, Box::pin(response));
        }
        Ok(())
    }

    /// Handles the response to the request that continues the stream. `None`: the response does not continue
    /// it, so the search goes on.
    fn on_response(
        &mut self,
        exchange: &mut Exchange,
        result: Result<BackendResponse, SendError>,
    ) -> Option<Continued> {
        let mut interruption = self.interruption.take()?;
        let step = std::mem::replace(&mut interruption.step, Step::Begin(Duration::ZERO));
        let Step::Sending(lease, _) = step else {
            return None;
        };
        match continuing_body(exchange, &lease, result) {
            Ok(body) => {
                return Some(Continued {
                    lease,
                    body,
                    since: interruption.at,
                });
            }
            Err(FailureKind::Busy | FailureKind::RateLimited) if interruption.ends_at.is_some() => {
                interruption.step = Step::Begin(BUSY_PAUSE);
            }
            Err(_) => interruption.tried.push(lease.backend().clone()),
        }
        self.interruption = Some(interruption);
        None
    }

    /// Gives up the continuation. If only the end of the stream is missing, the gateway writes the end.
    /// Otherwise the stream ends like a stream without continuation. If the interruption is not final, the
    /// stream stays at its backend.
    fn give_up(
        &mut self,
        exchange: &mut Exchange,
        backend: &Backend,
        reason: ContinuationRefusal,
        interrupted: Interrupted,
    ) {
        let Interrupted {
            cause, is_final, ..
        } = interrupted;
        let reason = match cause {
            InterruptionCause::Diverged => ContinuationRefusal::Diverged,
            _ if is_final && exchange.complete_stream() => {
                report_failure(exchange, backend, interrupted, 0);
                ContinuationRefusal::Completed
            }
            _ => reason,
        };
        exchange.refuse_continuation(reason, is_final);
        if cause == InterruptionCause::Migrated && reason == ContinuationRefusal::Capacity {
            exchange.move_later();
        }
        // The last attempt in the record must be the one whose response the client got.
        let asked = self
            .interruption
            .take()
            .map_or(0, |interruption| interruption.asked);
        let attempts = &mut exchange.record().attempts;
        if let Some(start) = attempts.len().checked_sub(asked + 1) {
            attempts[start..].rotate_left(1);
        }
    }
}

/// Why a stream is not continued after the search for a backend ended with this error.
const fn refusal_of(error: &GatewayError) -> ContinuationRefusal {
    match error {
        GatewayError::QueueTimeout { .. } | GatewayError::Saturated { .. } => {
            ContinuationRefusal::Capacity
        }
        _ => ContinuationRefusal::NoOtherBackend,
    }
}

/// The body of a response that continues a stream. The error is the failure of an attempt whose response does
/// not.
fn continuing_body(
    exchange: &mut Exchange,
    lease: &Lease,
    result: Result<BackendResponse, SendError>,
) -> Result<BackendBody, FailureKind> {
    let now = clock::now();
    let (status, kind) = match result {
        Ok(response) => {
            let status = response.status();
            if status == StatusCode::OK && is_event_stream(response.headers()) {
                lease.backend().on_response_started(now);
                if let Some(attempt) = exchange.record().attempts.last_mut() {
                    attempt.status = Some(status.as_u16());
                }
                return Ok(response.into_body());
            }
            (
                Some(status.as_u16()),
                FailureKind::of_status(status.as_u16()),
            )
        }
        Err(error) => (None, AttemptFailure::of_send(&error).kind),
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
    Err(kind)
}

/// Reports the failure of the backend whose stream was continued or completed, in the record and to
/// its circuit breaker. `later`: number of attempts to skip at the end of the record, because they belong
/// to the continuation.
fn report_failure(
    exchange: &mut Exchange,
    backend: &Backend,
    interrupted: Interrupted,
    later: usize,
) {
    let now = clock::now();
    let failure = failure_of(interrupted);
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
    if let Some(failure) = failure.filter(|_| interrupted.cause != InterruptionCause::Diverged) {
        backend.on_failure(failure, failure.as_str(), None, now);
    }
}

/// The failure of the backend that interrupted the stream. `None`: the backend did not fail.
const fn failure_of(interrupted: Interrupted) -> Option<FailureKind> {
    match interrupted.cause {
        InterruptionCause::Died if interrupted.ended_in_order => Some(FailureKind::Empty),
        InterruptionCause::Died => Some(FailureKind::Died),
        InterruptionCause::Stalled => Some(FailureKind::SlowOutput),
        InterruptionCause::BackendDown => Some(FailureKind::Down),
        InterruptionCause::Aborted => Some(FailureKind::Draining),
        InterruptionCause::EngineFailed => Some(FailureKind::InBandError),
        InterruptionCause::Diverged => Some(FailureKind::Garbage),
        InterruptionCause::Migrated => None,
    }
}

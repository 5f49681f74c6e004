//! Sends a request to the backend of its lease, and to further backends while attempts fail before
//! their first output.

use super::attempt;
use super::deadline::{Deadline, within};
use super::outgoing::UsageEdit;
use super::retry::{Caller, Failed};
use super::{Gateway, hold, outgoing};
use crate::backend::pool::Need;
use crate::backend::{Backend, Lease};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode, request};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_core::error::Error;
use tokenweir_core::observe::{Begun, Exchange};
use tokenweir_core::openai::request::Peek;
use tokenweir_core::record::{Decision, NotRetried};
use tokenweir_core::resilience::{Elsewhere, Symptom};
use tokenweir_net::client::SendError;
use tokenweir_net::connection::ReplicaBody;
use tokenweir_net::shortage;

/// A request that is ready to be sent.
pub(super) struct Call<'a> {
    pub(super) head: &'a request::Parts,
    pub(super) peek: &'a Peek,
    pub(super) body: outgoing::Body,
    pub(super) need: Need<'a>,
    pub(super) deadline: Option<Deadline>,
    /// The model by the name that the backend knows, if the request names one.
    pub(super) model: Option<&'a str>,
    /// Longest wait for the head of an answer, if the route has its own.
    pub(super) response_headers: Option<Duration>,
}

impl Call<'_> {
    /// Whether the request may have effects beyond its answer, so that it is executed at most once.
    pub(super) fn has_effects(&self) -> bool {
        self.peek.has_effects(self.body.plain())
    }
}

/// Pause between two attempts to move a request away from a backend that is down.
const MOVE_EVERY: Duration = Duration::from_secs(1);

/// An answer of which the beginning has been read.
type Answer = Response<Begun<ReplicaBody>>;

/// A replica failed a request, and what the client gets if no other one can have it: what that
/// replica said, or why it said nothing.
struct Failure {
    symptom: Symptom,
    /// For people.
    why: Cow<'static, str>,
    instead: Result<Box<Answer>, Error>,
}

/// Sends a request until a backend answers it.
pub(super) async fn relay(
    gateway: &Gateway,
    exchange: &mut Exchange,
    call: Call<'_>,
    mut place: (Lease, Arc<Decision>),
) -> Result<(Answer, Lease), Error> {
    let caller = Caller::of(exchange.record());
    gateway.retry.deposit(caller);
    let mut tried = Vec::new();
    let mut times = 0;
    loop {
        let (lease, decision) = place;
        let record = exchange.record();
        record.decision = Some(decision);
        record.timings.routed = Some(clock::now());
        let sent = tokio::select! {
            biased;
            sent = send(gateway, exchange, &call, &lease) => sent,
            next = moved(gateway, caller, &call, &lease, &tried, times) => {
                exchange.discard(Symptom::Down.as_str());
                tried.push(lease.backend().clone());
                times += 1;
                place = next;
                continue;
            }
        };
        let failure = match sent {
            Ok(answer) => return Ok((answer, lease)),
            Err(failure) => failure,
        };
        let symptom = failure.symptom;
        lease.backend().on_failure(symptom, &failure.why, clock::now());
        tried.push(lease.backend().clone());
        times += u32::from(symptom.elsewhere() != Elsewhere::Always);
        let allowed = gateway.retry.allow(caller, failed(symptom, times, &call), clock::now());
        let next = allowed.and_then(|()| {
            let next = gateway.pool.lease(call.need, &tried, clock::now());
            next.map_err(|_| NotRetried::Nowhere)
        });
        match next {
            Ok(next) => {
                exchange.discard(symptom.as_str());
                place = next;
            }
            Err(why) => {
                exchange.record().not_retried = Some(why);
                return give_up(exchange, failure, lease, why);
            }
        }
    }
}

fn failed<'a>(symptom: Symptom, times: u32, call: &'a Call<'_>) -> Failed<'a> {
    Failed { symptom, times, has_effects: call.has_effects(), body: call.body.plain() }
}

/// Waits until the health check has declared the backend of a request down and another backend may
/// have the request; gives the lease there. A backend that is frozen closes no connection, so
/// without this the request would wait for its own timeout.
///
/// The request stays where it is while no other backend can take it: the backend may recover.
async fn moved(
    gateway: &Gateway,
    caller: Caller,
    call: &Call<'_>,
    lease: &Lease,
    tried: &[Arc<Backend>],
    times: u32,
) -> (Lease, Arc<Decision>) {
    loop {
        lease.backend().declared_down().await;
        let tried = [tried, std::slice::from_ref(lease.backend())].concat();
        if let Ok(next) = gateway.pool.lease(call.need, &tried, clock::now()) {
            let failed = failed(Symptom::Down, times + 1, call);
            if gateway.retry.allow(caller, failed, clock::now()).is_ok() {
                return next;
            }
        }
        tokio::time::sleep(MOVE_EVERY).await;
    }
}

/// Sends it to one replica, and holds the answer until it is certain that it is one.
async fn send(
    gateway: &Gateway,
    exchange: &mut Exchange,
    call: &Call<'_>,
    lease: &Lease,
) -> Result<Answer, Failure> {
    let (body, usage) = call.body.for_replica(lease.backend());
    exchange.on_sent(lease.replica());
    let record = exchange.record();
    record.asked.usage_injected = usage != UsageEdit::None;
    record.asked.continuous_usage_injected = usage == UsageEdit::EveryEvent;
    let sent = loop {
        let sending = attempt::send(&gateway.client, record, lease.backend(), call, &body);
        match within(call.deadline, sending).await.map_err(late)? {
            // A connection that no request uses has the file descriptor that this one lacks.
            Err(SendError::Exhausted(_)) if gateway.pool.close_idle() => {}
            sent => break sent,
        }
    };
    let (head, body) = sent.map_err(|error| unanswered(&error))?.into_parts();
    exchange.on_head(head.status.as_u16(), &head.headers);
    let max_hold = gateway.retry.max_hold();
    let begun = hold::hold(exchange, head.status, body, max_hold, call.deadline).await;
    let begun = begun.map_err(late)?;
    let symptom = hold::symptom(exchange, head.status, &begun, call.model);
    if symptom.is_none() && head.status.is_success() && exchange.has_begun() {
        lease.backend().on_answer(clock::now());
    }
    let answer = Response::from_parts(head, begun);
    match symptom {
        None => Ok(answer),
        Some(symptom) => {
            let why = symptom.as_str().into();
            Err(Failure { symptom, why, instead: Ok(Box::new(answer)) })
        }
    }
}

/// No other replica has it: the client gets what this one said, or why it said nothing.
fn give_up(
    exchange: &mut Exchange,
    failure: Failure,
    lease: Lease,
    why: NotRetried,
) -> Result<(Answer, Lease), Error> {
    match failure.instead {
        Ok(mut answer) => {
            if answer.status() == StatusCode::SERVICE_UNAVAILABLE {
                answer.headers_mut().entry(RETRY_AFTER).or_insert(HeaderValue::from_static("1"));
            }
            Ok((*answer, lease))
        }
        Err(error) => {
            exchange.discard(failure.symptom.as_str());
            Err(if why == NotRetried::Poison { Error::Poison } else { error })
        }
    }
}

fn late(deadline: Deadline) -> Failure {
    let symptom = if deadline.is_clients { Symptom::Late } else { Symptom::SlowOutput };
    Failure { symptom, why: symptom.as_str().into(), instead: Err(deadline.error()) }
}

fn unanswered(error: &SendError) -> Failure {
    let (symptom, instead) = match error {
        SendError::Connect(_) => (Symptom::Unreachable, Error::NoBackend),
        SendError::Exhausted(problem) => {
            shortage::warn(problem);
            (Symptom::GatewayExhausted, Error::Exhausted)
        }
        SendError::Stale { .. } | SendError::Closed(_) => (Symptom::Died, Error::Closed),
        SendError::Garbage(_) => (Symptom::Garbage, Error::Garbage),
        SendError::Timeout(limit) => {
            (Symptom::SlowHead, Error::HeaderTimeout { seconds: limit.as_secs() })
        }
    };
    Failure { symptom, why: error.to_string().into(), instead: Err(instead) }
}

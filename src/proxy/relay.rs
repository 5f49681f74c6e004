//! From a place at a replica to an answer that can go on: the request is sent, and sent to another
//! replica, as long as nothing of an answer has reached the client.

use super::attempt;
use super::deadline::{Deadline, within};
use super::outgoing::UsageEdit;
use super::retry::Failed;
use super::{Gateway, hold, outgoing};
use crate::backend::client::SendError;
use crate::backend::pool::Need;
use crate::backend::{Lease, ReplicaBody};
use crate::clock;
use crate::error::Error;
use crate::observe::{Begun, Exchange};
use crate::openai::request::Peek;
use crate::record::{Decision, NotRetried};
use crate::resilience::{Elsewhere, Symptom};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode, request};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// A request that is ready to be sent.
pub(super) struct Call<'a> {
    pub(super) head: &'a request::Parts,
    pub(super) peek: &'a Peek,
    pub(super) body: outgoing::Body,
    pub(super) need: Need<'a>,
    pub(super) deadline: Option<Deadline>,
    /// How long the head of an answer is waited for, if it is not as long as usual.
    pub(super) response_headers: Option<Duration>,
}

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

/// Sends a request until a replica answers it.
pub(super) async fn relay(
    gateway: &Gateway,
    exchange: &mut Exchange,
    mut call: Call<'_>,
    mut place: (Lease, Arc<Decision>),
) -> Result<(Answer, Lease), Error> {
    gateway.retry.deposit();
    let mut tried = Vec::new();
    let mut times = 0;
    loop {
        let (lease, decision) = place;
        let record = exchange.record();
        record.decision = Some(decision);
        record.timings.routed = Some(clock::now());
        let failure = match send(gateway, exchange, &mut call, &lease).await {
            Ok(answer) => return Ok((answer, lease)),
            Err(failure) => failure,
        };
        let symptom = failure.symptom;
        lease.backend().on_failure(symptom, &failure.why, clock::now());
        tried.push(lease.backend().clone());
        times += u32::from(symptom.elsewhere() != Elsewhere::Always);
        let body = call.body.plain();
        let failed = Failed { symptom, times, has_effects: call.peek.has_effects(body), body };
        let allowed = gateway.retry.allow(failed, clock::now());
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

/// Sends it to one replica, and holds the answer until it is certain that it is one.
async fn send(
    gateway: &Gateway,
    exchange: &mut Exchange,
    call: &mut Call<'_>,
    lease: &Lease,
) -> Result<Answer, Failure> {
    let (body, usage) = call.body.for_replica(lease.backend());
    let record = exchange.record();
    record.asked.usage_injected = usage != UsageEdit::None;
    record.asked.continuous_usage_injected = usage == UsageEdit::EveryEvent;
    let (backend, limit) = (lease.backend(), call.response_headers);
    let sending = attempt::send(&gateway.client, record, backend, call.head, body, limit);
    let sent = within(call.deadline, sending).await.map_err(late)?;
    let (head, body) = sent.map_err(|error| unanswered(&error))?.into_parts();
    exchange.on_head(head.status.as_u16(), &head.headers, lease.replica());
    let max_hold = gateway.retry.max_hold();
    let begun = hold::hold(exchange, head.status, body, max_hold, call.deadline).await;
    let begun = begun.map_err(late)?;
    let symptom = hold::symptom(exchange, head.status, &begun);
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
        SendError::Stale => (Symptom::Stale, Error::Closed),
        SendError::Closed(_) => (Symptom::Died, Error::Closed),
        SendError::Garbage(_) => (Symptom::Garbage, Error::Garbage),
        SendError::Timeout(limit) => {
            (Symptom::SlowHead, Error::HeaderTimeout { seconds: limit.as_secs() })
        }
    };
    Failure { symptom, why: error.to_string().into(), instead: Err(instead) }
}

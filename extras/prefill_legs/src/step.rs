//! The prefill legs of one request, over all its attempts.

use crate::bodies;
use crate::leg::Parameters;
use crate::note::{PrefillNote, PrefillSkip};
use crate::search;
use futures_util::future::BoxFuture;
use std::time::Duration;
use tokenweir_engine::role::Role;
use tokenweir_gateway::proxy::BodyMemoryPermit;
use tokenweir_gateway::proxy::attempt::{
    AttemptStep, FailedAttempt, OutboundAttempt, PreparedRequest,
};
use tokenweir_gateway::proxy::option::RequestOption;
use tokenweir_protocol::clock;
use tokenweir_request::observe::Exchange;
use tokenweir_routing::resilience::FailureKind;

/// Sends the prefill leg of a request to a backend that computes the prompt, before another backend (the
/// decode backend) gets the request and generates the output.
#[derive(Debug, Default)]
pub struct PrefillLegs;

/// The state of the prefill legs of one request, over all its attempts.
#[derive(Default)]
struct Legs {
    /// The parameters from the response to a prefill leg. No decode backend of an earlier attempt has received
    /// them. `None`: there are no such parameters.
    parameters: Option<Box<Parameters>>,
    /// Whether the present attempt has the parameters.
    is_decode_leg: bool,
    /// Whether no further prefill legs are sent, so that decode backends compute the prompt themselves.
    is_off: bool,
    /// The permit for the memory of the bodies of both legs. `None`: no bodies exist.
    bodies: Option<BodyMemoryPermit>,
}

/// Maximum age of the parameters that a decode leg may use. The prefill backend keeps the blocks
/// for 30 s by default.
const MAX_AGE: Duration = Duration::from_secs(10);

impl RequestOption for PrefillLegs {
    fn step_at(&self, attempt: &OutboundAttempt<'_>) -> Option<Box<dyn AttemptStep>> {
        if is_decode_backend(attempt) {
            Some(Box::new(Legs::default()))
        } else {
            None
        }
    }
}

fn is_decode_backend(attempt: &OutboundAttempt<'_>) -> bool {
    attempt
        .lease
        .backend()
        .facets
        .role
        .get()
        .is_some_and(Role::reads_remote_prompts)
}

impl AttemptStep for Legs {
    fn before<'a>(
        &'a mut self,
        exchange: &'a mut Exchange,
        attempt: &'a mut OutboundAttempt<'_>,
    ) -> Option<BoxFuture<'a, ()>> {
        if !is_decode_backend(attempt) {
            return None;
        }
        Some(Box::pin(self.prefill(exchange, attempt)))
    }

    fn after_failure(&mut self, _: &mut Exchange, failed: &mut FailedAttempt) {
        let kind = failed.failure.kind;
        if kind != FailureKind::Unreachable {
            // An engine may already have read the blocks, and the blocks of a leg can be read only once.
            self.parameters = None;
        }
        if self.is_decode_leg && may_come_from_parameters(kind) {
            self.is_off = true;
            failed.failure.set_kind(FailureKind::TransferFailed);
        }
        self.is_decode_leg = false;
    }
}

impl Legs {
    /// Sends a prefill leg if that is predicted to be faster, and replaces the body of the attempt by the body
    /// of the decode leg. Otherwise the backend of the attempt computes the prompt.
    async fn prefill(&mut self, exchange: &mut Exchange, attempt: &mut OutboundAttempt<'_>) {
        let result = self.parameters(exchange, attempt).await;
        let skipped = result.as_ref().err().copied();
        exchange
            .record()
            .notes
            .update(|note: &mut PrefillNote| note.skipped = skipped);
        self.parameters = result.ok();
        if let Some(parameters) = &self.parameters
            && let Some(body) = bodies::decode_request(&attempt.body, &parameters.text)
        {
            attempt.body = body;
            attempt.is_once = true;
            self.is_decode_leg = true;
            exchange.record().has_remote_prompt = true;
        }
    }

    /// Returns the parameters for the decode leg. Reuses parameters that no engine has received yet, or sends a
    /// new prefill leg.
    async fn parameters(
        &mut self,
        exchange: &mut Exchange,
        attempt: &OutboundAttempt<'_>,
    ) -> Result<Box<Parameters>, PrefillSkip> {
        if let Some(unread) = self.parameters.take()
            && clock::now().duration_since(unread.got_at) < MAX_AGE
        {
            attempt.lease.move_prefill(true);
            return Ok(unread);
        }
        if self.is_off {
            return Err(PrefillSkip::Failed);
        }
        if !self.hold_bodies(attempt.request, attempt.body.len()) {
            return Err(PrefillSkip::Memory);
        }
        search::send_legs(exchange, attempt).await.map(Box::new)
    }

    /// Counts the memory of the bodies of both legs. `false`: a memory limit is exceeded.
    fn hold_bodies(&mut self, request: &PreparedRequest<'_>, bytes: usize) -> bool {
        let memory = &request.context.state.body_memory;
        let mut permit = memory.empty_permit(request.body.original().party());
        let is_counted = permit.add(2 * bytes).is_ok();
        self.bodies = is_counted.then_some(permit);
        is_counted
    }
}

/// Whether the parameters of a prefill leg may have caused a failure of this kind.
fn may_come_from_parameters(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::ServerError
            | FailureKind::InBandError
            | FailureKind::Empty
            | FailureKind::UnexpectedStatus
    )
}

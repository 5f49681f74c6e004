//! The steps between the attempts of a request, in their order. Only this file names all of them.
//!
//! ```text
//! before an attempt    optional steps  may change the body
//! head of a response   optional steps  see it before the gateway removes headers
//! after a failure      optional steps, name the failure more precisely, for the steps after them. The
//!                      facets, length  optional steps are first, because only they know their additions
//!                      moved model     marks the model lists as stale even if the request ends here
//!                      waits           see the kind that the steps before have named
//!                      refusals        decide last, because they can end the request
//! without a backend    moved model     a search takes less time than a wait
//!                      waits
//! at the end           refusals        replace the response by a more useful one
//!                      optional steps  may look at the response that the client gets
//! ```

mod facets;
mod length;
mod moved_model;
mod refusals;
mod waits;

use super::ProxyContext;
use super::attempt::{
    AttemptFailure, AttemptStep, Attempts, FailedAttempt, Next, OutboundAttempt, PreparedRequest,
    Search,
};
use super::option::RequestOptions;
use super::request::{EngineControlCheck, HeldBody, ReadRequest};
use super::response::{Forwarded, PrefetchedResponse, routing_headers};
use http::response;
use refusals::Refusals;
use tokenweir_protocol::openai::Permission;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::FailoverDenialReason;
use waits::Waits;

#[derive(Default)]
pub(super) struct Steps {
    optional: Vec<OptionalStep>,
    waits: Waits,
    refusals: Refusals,
    /// Whether the client asks for the response headers about routing and may have them.
    is_explained: bool,
}

struct OptionalStep {
    option: usize,
    step: Box<dyn AttemptStep>,
}

impl Steps {
    /// Prepares an attempt. The request is sent to the leased backend next.
    pub(super) async fn before(
        &mut self,
        exchange: &mut Exchange,
        attempt: &mut OutboundAttempt<'_>,
    ) {
        // Resets the value, which an earlier attempt may have set.
        exchange.record().has_remote_prompt = false;
        for (option, contract) in RequestOptions::of(attempt.request.context).enumerate() {
            if self.optional.iter().all(|known| known.option != option)
                && let Some(step) = contract.step_at(attempt)
            {
                self.optional.push(OptionalStep { option, step });
            }
        }
        for OptionalStep { step, .. } in &mut self.optional {
            if let Some(preparing) = step.before(exchange, attempt) {
                preparing.await;
            }
        }
    }

    /// Passes the head of the response to the optional steps, before the gateway removes headers from it.
    pub(super) fn on_head(
        &mut self,
        exchange: &mut Exchange,
        attempt: &OutboundAttempt<'_>,
        head: &response::Parts,
    ) {
        for OptionalStep { step, .. } in &mut self.optional {
            step.on_head(exchange, attempt, head);
        }
    }

    /// Learns from a failed attempt, and decides what follows.
    pub(super) fn after_failure(
        &mut self,
        exchange: &mut Exchange,
        attempts: &mut Attempts<'_>,
        failed: &mut FailedAttempt,
    ) -> Next {
        for OptionalStep { step, .. } in &mut self.optional {
            step.after_failure(exchange, failed);
        }
        facets::name_failure(failed);
        length::name_failure(attempts, failed);
        moved_model::after_failure(failed)
            .then(self.waits.after_failure(attempts, failed))
            .then(self.refusals.after_failure(exchange, attempts, failed))
    }

    /// Searches for a backend after [`Next::Search`], when the request has tried all backends that can serve it
    /// now.
    pub(super) async fn search(
        &mut self,
        exchange: &mut Exchange,
        attempts: &mut Attempts<'_>,
        failed: Box<FailedAttempt>,
    ) -> Search {
        match moved_model::search(exchange, attempts, failed).await {
            Search::NotFound(failed) => self.waits.search(exchange, attempts, failed).await,
            found => found,
        }
    }

    /// Lets the options plan their steps for a request whose body was read. A step may add edits of the body.
    pub(super) fn plan(
        context: &ProxyContext,
        exchange: &mut Exchange,
        request: &ReadRequest<'_>,
        body: &HeldBody,
        control: &mut EngineControlCheck,
    ) -> Self {
        let options = RequestOptions::of(context).enumerate();
        let steps = options.filter_map(|(option, contract)| {
            let step = contract.plan(exchange, request, body, &mut control.edits)?;
            Some(OptionalStep { option, step })
        });
        let optional = steps.collect();
        let is_explained = control.allow(Permission::RoutingHeaders)
            && routing_headers::is_requested(&request.head.headers);
        Self {
            optional,
            is_explained,
            ..Self::default()
        }
    }

    /// Ends a failed attempt, and keeps its response if the client may need it later.
    pub(super) fn leave(&mut self, exchange: &mut Exchange, failure: AttemptFailure) {
        if failure.is_refusal() {
            self.refusals.set_aside(exchange, failure);
        } else {
            exchange.discard_attempt(failure.kind.as_str());
        }
    }

    /// Tells the steps that the last attempt has succeeded.
    pub(super) fn end_with_response(
        &mut self,
        exchange: &mut Exchange,
        request: &PreparedRequest<'_>,
    ) {
        self.refusals
            .end_with_response(exchange, &request.context.retry);
    }

    /// Tells the steps that the last attempt has failed and why no other follows. Returns the response of an
    /// earlier attempt if that response is more useful to the client.
    pub(super) fn end_with_failure(
        &mut self,
        exchange: &mut Exchange,
        request: &PreparedRequest<'_>,
        failure: &AttemptFailure,
        reason: FailoverDenialReason,
    ) -> Option<PrefetchedResponse> {
        let retry = &request.context.retry;
        if let Some(kept) = self.refusals.end_with_failure(exchange, failure, retry) {
            return Some(kept);
        }
        for OptionalStep { step, .. } in &mut self.optional {
            step.end_with_failure(exchange, failure, reason);
        }
        None
    }

    /// Adds the headers about routing to a response, and the source of another body if the backend fails.
    pub(super) fn complete(
        &self,
        exchange: &mut Exchange,
        request: &PreparedRequest<'_>,
        mut forwarded: Forwarded,
    ) -> Forwarded {
        if self.is_explained {
            routing_headers::write(forwarded.response.headers_mut(), exchange.record());
        }
        let mut sources = self.optional.iter();
        forwarded.body_source = sources.find_map(|it| it.step.body_source(exchange, request));
        forwarded
    }
}

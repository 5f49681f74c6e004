//! The steps that options add to a request, in the order of the options.

use crate::proxy::attempt::{
    AttemptFailure, AttemptStep, Attempts, FailedAttempt, Next, OutboundAttempt, PreparedRequest,
    RequestOption, RequestOptions,
};
use crate::proxy::context::ProxyContext;
use crate::proxy::request::body_memory::HeldBody;
use crate::proxy::request::read_request::ReadRequest;
use crate::proxy::response::BodySource;
use tokenweir_protocol::openai::engine_control::FieldEdit;
use tokenweir_request::observe::Exchange;
use tokenweir_request::record::FailoverDenialReason;

/// The steps of the options that concern one request.
#[derive(Default)]
pub(super) struct OptionalSteps(Vec<OptionalStep>);

struct OptionalStep {
    /// The number of the option.
    option: usize,
    step: Box<dyn AttemptStep>,
}

/// The options, with their numbers.
fn options(context: &ProxyContext) -> impl Iterator<Item = (usize, &dyn RequestOption)> {
    let options = context.state.extensions.get::<RequestOptions>();
    options.into_iter().flat_map(|options| &options.0).map(|option| &**option).enumerate()
}

impl OptionalSteps {
    /// The steps of a request with this body that was read. They may add edits of the body.
    pub(super) fn plan(
        context: &ProxyContext,
        exchange: &mut Exchange,
        request: &ReadRequest<'_>,
        body: &[u8],
        edits: &mut Vec<FieldEdit>,
    ) -> Self {
        let mut steps = Vec::new();
        for (option, contract) in options(context) {
            if let Some(step) = contract.plan(exchange, request, body, edits) {
                steps.push(OptionalStep { option, step });
            }
        }
        Self(steps)
    }

    pub(super) fn begin(&mut self, exchange: &mut Exchange, body: &HeldBody) {
        for OptionalStep { step, .. } in &mut self.0 {
            step.begin(exchange, body);
        }
    }

    pub(super) async fn before(
        &mut self,
        exchange: &mut Exchange,
        attempt: &mut OutboundAttempt<'_>,
    ) {
        for (option, contract) in options(attempt.request.context) {
            if self.0.iter().all(|known| known.option != option)
                && let Some(step) = contract.step_at(attempt)
            {
                self.0.push(OptionalStep { option, step });
            }
        }
        for OptionalStep { step, .. } in &mut self.0 {
            if let Some(preparing) = step.before(exchange, attempt) {
                preparing.await;
            }
        }
    }

    pub(super) fn after_failure(
        &mut self,
        exchange: &mut Exchange,
        attempts: &mut Attempts<'_>,
        failed: &mut FailedAttempt,
    ) -> Next {
        self.0.iter_mut().fold(Next::Failover, |next, OptionalStep { step, .. }| {
            next.then(step.after_failure(exchange, attempts, failed))
        })
    }

    pub(super) fn end_with_failure(
        &mut self,
        exchange: &mut Exchange,
        failure: &AttemptFailure,
        reason: FailoverDenialReason,
    ) {
        for OptionalStep { step, .. } in &mut self.0 {
            step.end_with_failure(exchange, failure, reason);
        }
    }

    pub(super) fn body_source(
        &self,
        exchange: &Exchange,
        request: &PreparedRequest<'_>,
    ) -> Option<BodySource> {
        self.0.iter().find_map(|OptionalStep { step, .. }| step.body_source(exchange, request))
    }
}

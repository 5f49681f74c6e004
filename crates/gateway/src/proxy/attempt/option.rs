//! The contract of an option of the path of a request. `app/extras.rs` of the program lists the options.

use super::send::OutboundAttempt;
use super::step::AttemptStep;
use crate::proxy::extensions::Extension;
use crate::proxy::request::read_request::ReadRequest;
use std::fmt::Debug;
use std::sync::Arc;
use tokenweir_protocol::openai::engine_control::FieldEdit;
use tokenweir_request::observe::Exchange;

/// The options of the path of a request, in the order of their steps.
#[derive(Debug)]
pub struct RequestOptions(pub Vec<Arc<dyn RequestOption>>);

impl Extension for RequestOptions {}

/// An option of the path of a request: it adds a step to the requests that it concerns.
pub trait RequestOption: Debug + Send + Sync {
    /// The step of a request with this body that was read. It may add edits of the body. `None`: it is not known
    /// yet whether the option concerns the request.
    fn plan(
        &self,
        _exchange: &mut Exchange,
        _request: &ReadRequest<'_>,
        _body: &[u8],
        _edits: &mut Vec<FieldEdit>,
    ) -> Option<Box<dyn AttemptStep>> {
        None
    }

    /// The step of a request that has none, before an attempt. `None`: the option does not concern the attempt.
    fn step_at(&self, _attempt: &OutboundAttempt<'_>) -> Option<Box<dyn AttemptStep>> {
        None
    }
}

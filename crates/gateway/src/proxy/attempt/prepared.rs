//! A request that can be sent to a backend.

use super::outbound::OutboundRequest;
use crate::backend::pool::BackendRequirements;
use crate::proxy::context::ProxyContext;
use crate::proxy::request::deadline::{AttemptDeadlines, ResponseDeadline};
use crate::proxy::request::upstream_body::UpstreamBody;
use crate::proxy::response::EarlyResponse;
use bytes::Bytes;
use http::request;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::request_fields::RequestFields;

/// A client request that is read and checked, and can be sent to a backend.
pub struct PreparedRequest<'a> {
    /// The settings and the state that all requests share.
    pub context: &'a Arc<ProxyContext>,
    /// The head of the client request.
    pub head: &'a request::Parts,
    /// The fields that were read from the body.
    pub fields: &'a RequestFields,
    /// The body, with edits for the backends.
    pub body: &'a UpstreamBody,
    /// What the request requires of its backend.
    pub requirements: &'a BackendRequirements<'a>,
    /// The deadlines until the response head is sent to the client.
    /// [`PreparedRequest::current_deadlines`] returns those that still apply.
    pub(crate) deadlines: AttemptDeadlines,
    /// The model name that the backends use. `None`: the request names no model.
    pub(crate) backend_model: Option<&'a str>,
    /// Whether the request is about a stored response. A backend that does not have it answers 404,
    /// and another backend may have it.
    pub(crate) is_lookup: bool,
    /// The response that can begin before its backend is decided. `None`: this response cannot
    /// begin early.
    pub(crate) early: Option<&'a EarlyResponse>,
    /// Timeout for the response head, from the route. `None`: the default of the HTTP client.
    pub response_headers_timeout: Option<Duration>,
}

impl PreparedRequest<'_> {
    /// What a request to a backend with this body is made from.
    pub fn outbound<'b>(&'b self, body: &'b Bytes) -> OutboundRequest<'b> {
        OutboundRequest {
            head: self.head,
            prompt: self.requirements.prompt,
            body,
            headers_timeout: self.response_headers_timeout,
        }
    }

    /// Whether the request may have side effects besides its response. The gateway lets at most one
    /// backend execute such a request.
    pub fn has_side_effects(&self) -> bool {
        self.fields.has_effects(self.body.original())
    }

    /// Whether the client has got the head of the response and comments.
    pub(crate) fn has_begun_response(&self) -> bool {
        self.early.is_some_and(EarlyResponse::has_begun)
    }

    /// The deadlines that apply now. The read timeout that the client announced no longer applies
    /// when the gateway has sent bytes, such as comments, before the response.
    pub fn current_deadlines(&self) -> AttemptDeadlines {
        if self.has_begun_response() {
            self.deadlines.without_client()
        } else {
            self.deadlines
        }
    }

    /// Awaits `future` within the deadlines. Returns the deadline that passes first as the error.
    /// `future` is passed as a pinned reference: a future passed by value would take memory for each
    /// place that awaits it, and again for the argument.
    pub(crate) async fn within_deadlines<T>(
        &self,
        mut future: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, ResponseDeadline> {
        while let Some(deadline) = self.current_deadlines().next() {
            let result = tokio::time::timeout_at(deadline.at.into(), future.as_mut()).await;
            if let Ok(output) = result {
                return Ok(output);
            }
            if self.current_deadlines().passed(clock::now()).is_some() {
                return Err(deadline);
            }
        }
        Ok(future.await)
    }
}

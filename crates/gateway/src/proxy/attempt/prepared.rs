//! A request that can be sent to a backend.

use super::outbound::OutboundRequest;
use crate::backend::pool::BackendRequirements;
use crate::proxy::ProxyContext;
use crate::proxy::request::{AttemptDeadlines, ResponseDeadline, UpstreamBody};
use crate::proxy::response::EarlyResponse;
use bytes::Bytes;
use http::request;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::clock;
use tokenweir_protocol::openai::RequestFields;

/// A client request that is read and checked, and can be sent to a backend.
pub struct PreparedRequest<'a> {
    /// The settings and the state that all requests share.
    pub context: &'a Arc<ProxyContext>,
    /// Method, path and headers of the client.
    pub head: &'a request::Parts,
    /// The fields that were read from the body.
    pub fields: &'a RequestFields,
    /// The body and its edits for the backends.
    pub body: &'a UpstreamBody,
    /// The requirements of the request on a backend, such as model, length and path.
    pub requirements: &'a BackendRequirements<'a>,
    /// The deadlines until the response head is sent to the client. [`PreparedRequest::current_deadlines`]
    /// leaves out those that no longer apply.
    pub(crate) deadlines: AttemptDeadlines,
    /// The model name that the backends use. `None`: the request names no model.
    pub(crate) backend_model: Option<&'a str>,
    /// Whether the request is about a stored response. If a backend answers 404, another backend may have the
    /// response.
    pub(crate) is_lookup: bool,
    /// The response that can begin before its backend is decided. `None`: the response cannot begin early.
    pub(crate) early: Option<&'a EarlyResponse>,
    /// Timeout for the response head, from the route. `None`: the default of the HTTP client.
    pub response_headers_timeout: Option<Duration>,
}

impl PreparedRequest<'_> {
    /// The parts of a request to a backend, with this body.
    pub fn outbound<'b>(&'b self, body: &'b Bytes) -> OutboundRequest<'b> {
        OutboundRequest {
            head: self.head,
            prompt: self.requirements.prompt,
            body,
            headers_timeout: self.response_headers_timeout,
        }
    }

    /// Whether the request may have side effects besides its response. At most one backend may execute such a
    /// request.
    pub fn has_side_effects(&self) -> bool {
        self.fields.has_effects(self.body.original())
    }

    /// Whether the client has received the head of the response and comments.
    pub(crate) fn has_begun_response(&self) -> bool {
        self.early.is_some_and(EarlyResponse::has_begun)
    }

    /// The deadlines that apply now. The read timeout that the client announced ends when the gateway has sent
    /// any bytes, such as comments.
    pub fn current_deadlines(&self) -> AttemptDeadlines {
        if self.has_begun_response() {
            self.deadlines.without_client()
        } else {
            self.deadlines
        }
    }

    /// Awaits `future` within the deadlines. The error is the deadline that passes first. `future` is a pinned
    /// reference to save memory: a future passed by value would be stored in each place that awaits it, and
    /// again as the argument.
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

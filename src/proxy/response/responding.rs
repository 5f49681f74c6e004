//! The future of a response: that of the handling of a request, or an early response.

use super::early_response::EarlyResponse;
use super::response_body::{EarlyBody, Handling, ProxyResponseBody};
use http::Response;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The response to a request: that of its handling, or an early one that contains the handling.
pub struct Responding {
    /// `None`: the response was returned.
    handling: Option<Handling>,
    early: Arc<EarlyResponse>,
}

impl Responding {
    /// The response of a request that is being handled.
    pub fn new(handling: Handling, early: Arc<EarlyResponse>) -> Self {
        Self { handling: Some(handling), early }
    }
}

impl Future for Responding {
    type Output = Response<ProxyResponseBody>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut handling) = self.handling.take() else { return Poll::Pending };
        if let Poll::Ready(response) = handling.as_mut().poll(cx) {
            return Poll::Ready(response);
        }
        let Some(headers) = self.early.take_head() else {
            self.handling = Some(handling);
            return Poll::Pending;
        };
        let body = EarlyBody::new(self.early.clone(), handling);
        let mut response = Response::new(ProxyResponseBody::Early(Box::new(body)));
        *response.headers_mut() = headers;
        Poll::Ready(response)
    }
}

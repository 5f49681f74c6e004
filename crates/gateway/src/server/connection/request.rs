//! Passes the requests of a client connection to the proxy, for HTTP/1.1 and HTTP/2.

use super::http1_connection::SharedHttp1Connection;
use super::limiter::{ConnectionPermit, RequestPermit};
use super::state::ServerState;
use crate::proxy::option::RequestOptions;
use crate::proxy::{
    AcceptedRequest, ClientInfo, EarlyResponse, IncomingBody, ProxyContext, ProxyResponse,
    ProxyResponseBody, Responding, accept_request, handle_request,
};
use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokenweir_net::supervise::{self, BackgroundTask};
use tokenweir_request::error::{ErrorEnvelope, GatewayError};
use tokenweir_request::observe::ResponseAbortHandle;

/// The values shared by the requests of one client connection.
pub(super) struct ConnectionContext {
    pub state: Arc<ServerState>,
    pub ip: IpAddr,
    pub permit: ConnectionPermit,
    pub abort_handle: ResponseAbortHandle,
}

pub(super) enum RequestBody {
    /// The body of an HTTP/1.1 request. Polling it reads from the connection.
    Http1(SharedHttp1Connection),
    Http2(hyper::body::Incoming),
}

impl ConnectionContext {
    /// Accepts a request by its head, and returns its permit and the future of its response. The request counts
    /// as open until the permit is dropped. `abort_handle` aborts the response if the client does not read it.
    ///
    /// When this function returns, the record of the request exists. The request is handled when the returned
    /// future is polled.
    pub(super) fn start_request(
        &self,
        mut request: Request<RequestBody>,
        abort_handle: ResponseAbortHandle,
    ) -> (RequestPermit, Responding) {
        let permit = self.permit.acquire_request();
        let client = ClientInfo {
            ip: self.ip,
            open_requests: permit.client_requests_in_flight,
        };
        let proxy = self.state.proxy_context.load_full();
        let accepted = supervise::catch_panic(BackgroundTask::REQUEST, || {
            accept_request(&proxy, &client, &mut request)
        });
        // Boxed, so that the future's memory is free while the response body is sent, which may take long.
        let early = Arc::<EarlyResponse>::default();
        let of_response = early.clone();
        let handling =
            pin_in_place(|| respond(proxy, client, accepted, abort_handle, of_response, request));
        (permit, Responding::new(handling, early))
    }

    /// Refuses an HTTP/2 request because of its head, before the proxy gets it. A malformed HTTP/1.1 head is
    /// refused in the same way. Returns the permit of the request and the error response.
    pub(super) fn refuse_request(
        &self,
        error: &GatewayError,
        request: &Request<RequestBody>,
    ) -> (RequestPermit, ProxyResponse) {
        let envelope = ErrorEnvelope::for_path(request.uri().path());
        let response = error.to_response_in(envelope, None);
        let response = ProxyResponseBody::complete(response);
        (self.permit.acquire_request(), response)
    }
}

/// Handles an accepted request and returns its response. If this panics, or if accepting the request panicked
/// (`accepted` is `None`), the client gets an internal error, and other requests continue.
async fn respond(
    proxy: Arc<ProxyContext>,
    client: ClientInfo,
    accepted: Option<AcceptedRequest>,
    abort_handle: ResponseAbortHandle,
    early: Arc<EarlyResponse>,
    request: Request<RequestBody>,
) -> ProxyResponse {
    let envelope = ErrorEnvelope::for_path(request.uri().path());
    let response = match accepted {
        Some(AcceptedRequest::AnsweredLocally(response)) => {
            Some(ProxyResponseBody::complete(response))
        }
        Some(AcceptedRequest::Recorded(recorded)) => {
            let mut recorded = recorded;
            if let Some(taken) = RequestOptions::take_over(&proxy, &mut recorded, request.headers())
            {
                let request = request.map(BodyExt::boxed_unsync);
                let responding = taken.respond(&proxy, recorded, abort_handle, &early, request);
                supervise::catch_panic_async(BackgroundTask::REQUEST, responding).await
            } else {
                // A separate box avoids a copy of the large future into the outer box.
                let handling = || handle_request(&proxy, recorded, abort_handle, &early, request);
                let handling = pin_in_place(handling);
                supervise::catch_panic_async(BackgroundTask::REQUEST, handling).await
            }
        }
        None => None,
    };
    response.unwrap_or_else(|| {
        tracing::error!(
            ip = %client.ip,
            "a request made the gateway panic (a defect): responding with an error"
        );
        ProxyResponseBody::complete(GatewayError::Internal.to_response_in(envelope, None))
    })
}

/// Creates a future directly in its heap allocation. `Box::pin` would create the future on the stack and copy
/// all of its bytes, because a failing allocation can panic and must then drop the future.
fn pin_in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, make()))
}

impl IncomingBody for RequestBody {}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Http1(connection) => connection.poll_body(cx),
            Self::Http2(body) => Pin::new(body).poll_frame(cx).map_err(io::Error::other),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(connection) => connection.is_body_complete(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }
}

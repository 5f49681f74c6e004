//! The response to a client: the future that produces it, its body, and the body of a response that began
//! before its backend was decided.

use super::early_response::EarlyResponse;
use super::run_body::RunBody;
use crate::backend::Lease;
use bytes::{Bytes, BytesMut};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokenweir_net::backend_body::BackendBody;
use tokenweir_protocol::headers::is_event_stream;
use tokenweir_protocol::openai::Api;
use tokenweir_request::access::ConcurrencyPermit;
use tokenweir_request::observe::{ObservedBody, ObservedBodyError};

/// The response to a client. Boxed, because each layer between the proxy and the connection moves it.
pub type ProxyResponse = Box<Response<ProxyResponseBody>>;

/// The body of a response to a client.
#[expect(
    clippy::large_enum_variant,
    reason = "most responses are of the largest variant"
)]
pub enum ProxyResponseBody {
    /// A complete body that the gateway made, such as an error.
    Complete(Full<Bytes>),
    /// A body from a backend, whose bytes the observer reads.
    Observed(BackendResponseBody),
    /// The body of a response that began before its backend was decided.
    Early(Box<EarlyBody>),
    /// The body of a response that continues without its connection.
    Followed(Box<RunBody>),
}

type BackendResponseBody = ObservedBody<BackendBody, ResponseGuard>;

/// The values that a response body from a backend holds until its end.
pub struct ResponseGuard {
    /// The lease on the backend that sends the body.
    pub lease: Lease,
    /// The concurrency permit. `None`: no concurrency limit applies to the request.
    #[expect(dead_code, reason = "its drop ends the permit")]
    pub(in crate::proxy) permit: Option<ConcurrencyPermit>,
}

/// The future that handles a request to its response head.
pub type Handling = Pin<Box<dyn Future<Output = ProxyResponse> + Send>>;

/// The body of a response that began before its backend was decided.
pub struct EarlyBody {
    early: Arc<EarlyResponse>,
    state: BodyState,
}

enum BodyState {
    /// The request is still being handled, and its response is not known.
    Handling(Handling),
    /// The request succeeded, and the body of its response is forwarded.
    Streaming(ProxyResponseBody),
    /// The request failed after the client got the beginning of a stream. The body of the error response
    /// becomes an error event.
    Failed {
        status: StatusCode,
        body: ProxyResponseBody,
        read: BytesMut,
    },
    /// The request failed after the client got the beginning of a JSON response. The body ends with a transport
    /// error and without a JSON document.
    Cut,
    Ended,
}

/// Maximum number of bytes of an error response that are read for the error event.
const MAX_ERROR_BYTES: usize = 64 << 10;

impl ProxyResponseBody {
    /// A response that the gateway made.
    pub fn complete(response: Response<Full<Bytes>>) -> ProxyResponse {
        Box::new(response.map(Self::Complete))
    }

    /// Records that the server flushed the client's connection after it took frames of this body.
    /// `is_complete`: all bytes of the frames are written.
    pub fn on_flush(&mut self, is_complete: bool) {
        match self {
            Self::Complete(_) | Self::Followed(_) => {}
            Self::Observed(body) => body.on_flush(is_complete),
            Self::Early(body) => body.on_flush(is_complete),
        }
    }
}

impl Body for ProxyResponseBody {
    type Data = Bytes;
    type Error = <BackendResponseBody as Body>::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.get_mut() {
            Self::Complete(body) => Pin::new(body)
                .poll_frame(cx)
                .map_err(|never: Infallible| match never {}),
            Self::Observed(body) => Pin::new(body).poll_frame(cx),
            Self::Early(body) => body.poll_frame(cx),
            Self::Followed(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Complete(body) => body.is_end_stream(),
            Self::Observed(body) => body.is_end_stream(),
            Self::Early(body) => body.is_end_stream(),
            Self::Followed(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Complete(body) => body.size_hint(),
            Self::Observed(body) => body.size_hint(),
            Self::Early(_) => SizeHint::default(),
            Self::Followed(body) => body.size_hint(),
        }
    }
}

impl EarlyBody {
    /// Creates the body of a response that begins before `handling` completes. `handling`: the future that
    /// handles the request.
    pub(super) fn new(early: Arc<EarlyResponse>, handling: Handling) -> Self {
        Self {
            early,
            state: BodyState::Handling(handling),
        }
    }

    /// Records a flush of the client's connection, as [`ProxyResponseBody::on_flush`] does.
    fn on_flush(&mut self, is_complete: bool) {
        if let BodyState::Streaming(body) = &mut self.state {
            body.on_flush(is_complete);
        }
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, <ProxyResponseBody as Body>::Error>>> {
        loop {
            if let Some(comments) = self.early.take_comments() {
                return Poll::Ready(Some(Ok(Frame::data(comments))));
            }
            match &mut self.state {
                BodyState::Handling(handling) => match handling.as_mut().poll(cx) {
                    Poll::Ready(response) => {
                        self.state = rest_of(response, self.early.is_json());
                    }
                    Poll::Pending if !self.early.has_comments() => return Poll::Pending,
                    Poll::Pending => {}
                },
                BodyState::Streaming(body) => return Pin::new(body).poll_frame(cx),
                BodyState::Failed { status, body, read } => match Pin::new(body).poll_frame(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(frame))) if read.len() < MAX_ERROR_BYTES => {
                        let data = frame.into_data().unwrap_or_default();
                        read.extend_from_slice(&data);
                    }
                    Poll::Ready(_) => {
                        let status = *status;
                        let read = read.split();
                        let event = self.error_event(status, &read);
                        self.state = BodyState::Ended;
                        return Poll::Ready(Some(Ok(Frame::data(event))));
                    }
                },
                BodyState::Cut => {
                    self.state = BodyState::Ended;
                    return Poll::Ready(Some(Err(ObservedBodyError::Followed)));
                }
                BodyState::Ended => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            BodyState::Streaming(body) => body.is_end_stream() && !self.early.has_comments(),
            state => matches!(state, BodyState::Ended),
        }
    }

    fn error_event(&self, status: StatusCode, body: &[u8]) -> Bytes {
        let api = self.early.api().unwrap_or(Api::Other);
        api.error_event_of_response(status.as_u16(), body)
    }
}

/// How the body of `response` continues an early response, whose beginning the client already has.
fn rest_of(response: ProxyResponse, is_json: bool) -> BodyState {
    let (head, body) = response.into_parts();
    if head.status.is_success() && (is_json || is_event_stream(&head.headers)) {
        return BodyState::Streaming(body);
    }
    if is_json {
        return BodyState::Cut;
    }
    BodyState::Failed {
        status: head.status,
        body,
        read: BytesMut::new(),
    }
}

/// The future of the response to a request. It returns the response of the handling future. If bytes are due
/// before that, it returns an early response whose body contains the handling future.
pub struct Responding {
    /// The future that handles the request. `None`: the response was returned.
    handling: Option<Handling>,
    early: Arc<EarlyResponse>,
}

impl Responding {
    /// Creates the future of the response from `handling`, the future that handles the request.
    pub fn new(handling: Handling, early: Arc<EarlyResponse>) -> Self {
        Self {
            handling: Some(handling),
            early,
        }
    }
}

impl Future for Responding {
    type Output = ProxyResponse;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut handling) = self.handling.take() else {
            return Poll::Pending;
        };
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
        Poll::Ready(Box::new(response))
    }
}

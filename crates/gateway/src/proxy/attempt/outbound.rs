//! The request that a backend gets: method and path of the client, headers for the backend, and a body.

use crate::backend::Lease;
use bytes::Bytes;
use http::header::{AUTHORIZATION, VIA};
use http::{Request, request};
use std::sync::Arc;
use std::time::Duration;
use tokenweir_protocol::headers::{self, UpstreamHeaders};
use tokenweir_request::record::RequestRecord;
use tokenweir_routing::PromptFingerprint;

/// The parts from which a request to a backend is built.
pub struct OutboundRequest<'a> {
    /// Method, path and headers of the client.
    pub head: &'a request::Parts,
    /// Length and block hashes of the prompt.
    pub prompt: &'a Arc<PromptFingerprint>,
    /// The body with the edits for this backend.
    pub body: &'a Bytes,
    /// Timeout for the response head. `None`: the default of the HTTP client.
    pub headers_timeout: Option<Duration>,
}

/// Number of headers that [`OutboundRequest::build`] adds to most requests: `Via`, and three headers of
/// the trace context.
const ADDED_HEADERS: usize = 4;

impl OutboundRequest<'_> {
    /// Builds the request for the backend: method and path of the client request, headers rewritten for the
    /// backend, and the body. `span_id`: the id of the attempt's trace span.
    pub(super) fn build(
        &self,
        record: &RequestRecord,
        lease: &Lease,
        span_id: u64,
    ) -> Request<Bytes> {
        let backend = lease.backend();
        let mut request = Request::new(self.body.clone());
        *request.method_mut() = self.head.method.clone();
        if let Some(path) = self.head.uri.path_and_query() {
            *request.uri_mut() = backend.identity.address.uri(path);
        }
        let upstream = UpstreamHeaders {
            host: backend.identity.address.host_header(),
            request_id: &record.request_id,
            client_ip: record.client,
        };
        let client = &self.head.headers;
        let mut outbound = headers::upstream_request_headers(client, &upstream, ADDED_HEADERS);
        if let Some(key) = &backend.identity.authorization {
            outbound.insert(AUTHORIZATION, key.clone());
        }
        lease.set_headers(self.prompt, &mut outbound);
        if let Some(hop) = backend.hop() {
            outbound.append(VIA, hop.clone());
        }
        if let Some(trace) = &record.trace {
            trace.inject(span_id, &mut outbound);
        }
        *request.headers_mut() = outbound;
        request
    }
}

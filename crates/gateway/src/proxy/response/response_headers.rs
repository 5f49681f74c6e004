//! The headers that the gateway sets in each response to a client.

use crate::proxy::access::Principal;
use http::header::{CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokenweir_protocol::headers::{self, RequestId};
use tokenweir_request::access::Cors;

/// The values of the headers that the gateway sets in the response to one request.
pub struct ResponseHeaders<'a> {
    /// Sent to the client as `X-Request-Id`.
    pub request_id: &'a RequestId,
    /// The `Origin` header of the request. `None`: the client is no web page.
    pub origin: Option<&'a HeaderValue>,
    /// Decides which origins get CORS headers.
    pub cors: &'a Cors,
    /// The client. The headers state its remaining rate limits.
    pub principal: &'a Principal,
}

impl ResponseHeaders<'_> {
    /// Rewrites the headers of a backend or of the gateway for the client.
    pub fn complete(&self, headers: &mut HeaderMap) {
        headers::rewrite_response_headers(headers, self.request_id);
        self.principal.rate_limit_status().write(headers);
        self.cors.apply(self.origin, headers);
    }

    /// Completes the headers of a response. `Upgrade` applies to one hop, so [`Self::complete`] removes it. A
    /// response to an upgrade gets its own `Upgrade` header again.
    pub(crate) fn complete_response<B>(&self, response: &mut Response<B>) {
        let status = response.status();
        let headers = response.headers_mut();
        let upgrade = headers.remove(UPGRADE);
        self.complete(headers);
        let is_about_upgrade = matches!(
            status,
            StatusCode::SWITCHING_PROTOCOLS | StatusCode::UPGRADE_REQUIRED
        );
        if let Some(upgrade) = upgrade
            && is_about_upgrade
        {
            headers.insert(UPGRADE, upgrade);
        }
    }

    /// The headers of a response that begins before its backend is decided.
    pub(crate) fn early(&self, media_type: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        self.complete(&mut headers);
        headers
    }
}

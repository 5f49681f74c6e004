//! The settings of request handling, such as timeouts, body limits, configured routes and tiers.

use super::identity::{IdentityReader, session_name, stable_hash};
use crate::proxy::configured_routes::ConfiguredRoutes;
use http::{HeaderMap, HeaderName};
use std::time::Duration;
use tokenweir_protocol::openai::RequestFields;
use tokenweir_request::record::{RequestOptions, TierResolver};

/// Settings of requests. A reload does not change the settings of requests that are open.
#[derive(Debug, Default)]
pub struct RequestSettings {
    /// Timeout of the first output of a stream, counted from the request head. `None`: no timeout.
    pub first_output_timeout: Option<Duration>,
    /// Timeout of the whole request, counted from its head. `None`: no timeout.
    pub total_timeout: Option<Duration>,
    /// Paths that the configuration adds to the paths of the inference APIs. The gateway forwards requests for
    /// these paths to backends.
    pub routes: ConfiguredRoutes,
    /// Maximum length of a request body, in bytes.
    pub max_body_bytes: usize,
    /// Maximum wait for the next chunk of a request body, after which the request is rejected.
    pub body_idle_timeout: Duration,
    /// Maximum time without bytes in either direction of a WebSocket, after which the connection is closed.
    pub websocket_idle_timeout: Duration,
    /// Determines the tier of a request from its headers.
    pub tiers: TierResolver,
    /// Reads user, session and conversation of a request, for spans and log lines.
    pub identities: IdentityReader,
    /// The names of the headers that can contain a session id. The first of them that a request has counts.
    pub session_headers: Vec<HeaderName>,
}

impl RequestSettings {
    /// The options of a request for its record, such as `stream` and `max_tokens`. Read from the fields of the
    /// body and from the headers.
    pub fn options(&self, headers: &HeaderMap, fields: &RequestFields) -> RequestOptions {
        RequestOptions {
            stream: fields.stream,
            max_tokens: fields.max_tokens,
            n: fields.n,
            parameters: fields.parameters.clone(),
            forbids_store: fields.forbids_store,
            messages: (fields.identity.messages > 0).then_some(fields.identity.messages),
            identity: self.identities.read(headers, fields),
            ..RequestOptions::default()
        }
    }

    /// A hash of the [session name](session_name) of a request. `None`: the request names no session.
    pub(crate) fn session_hash(&self, headers: &HeaderMap, fields: &RequestFields) -> Option<u64> {
        session_name(headers, &self.session_headers, fields).map(|name| stable_hash(&name))
    }
}

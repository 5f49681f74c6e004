//! Who may see what operators see.

use super::Admin;
use crate::access::{KeyDigest, bearer};
use axum::extract::{Request, State};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// The token that the port wants. Probes have none, so they are for everybody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Guard {
    /// Its digest. `None`: everything is for everybody.
    pub token: Option<KeyDigest>,
    /// Whether metrics are for everybody all the same.
    pub has_open_metrics: bool,
}

impl Guard {
    fn lets_in(&self, path: &str, headers: &HeaderMap) -> bool {
        let is_open = match path {
            "/livez" | "/readyz" => true,
            "/metrics" => self.has_open_metrics,
            _ => false,
        };
        let is_known = |token: &KeyDigest| {
            bearer(headers).is_some_and(|sent| KeyDigest::of(sent).is_same(token))
        };
        is_open || self.token.as_ref().is_none_or(is_known)
    }
}

/// Asks for the token before anything is looked at.
pub(super) async fn check(
    State(admin): State<Arc<Admin>>,
    request: Request,
    next: Next,
) -> Response {
    if admin.guard.lets_in(request.uri().path(), request.headers()) {
        return next.run(request).await;
    }
    let problem = "this needs the token of access.admin_token; send Authorization: Bearer TOKEN\n";
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], problem).into_response()
}

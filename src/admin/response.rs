//! Responses of the admin listener.

use axum::Json;
use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Adds the header `Cache-Control: no-store`, so that no cache stores the response.
pub(super) fn without_caching(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A JSON response about the present state, which no cache may store.
pub(super) fn document(content: impl Serialize) -> Response {
    without_caching(Json(content).into_response())
}

//! `POST /-/drain` and `POST /-/undrain`: remove a backend from routing and return it. A drained
//! backend gets no new requests and completes its open requests.

use super::response::without_caching;
use super::state::Admin;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

/// The query parameters of both endpoints: the name of the backend.
#[derive(Debug, Deserialize)]
pub(super) struct DrainQuery {
    backend: String,
}

/// Handles `POST /-/drain?backend=NAME`.
pub(super) async fn drain(
    State(admin): State<Arc<Admin>>,
    headers: HeaderMap,
    query: Result<Query<DrainQuery>, QueryRejection>,
) -> Response {
    set_drained(&admin, &headers, query, true)
}

/// Handles `POST /-/undrain?backend=NAME`.
pub(super) async fn undrain(
    State(admin): State<Arc<Admin>>,
    headers: HeaderMap,
    query: Result<Query<DrainQuery>, QueryRejection>,
) -> Response {
    set_drained(&admin, &headers, query, false)
}

/// Drains a backend, or undrains it if `is_drained` is false.
fn set_drained(
    admin: &Admin,
    headers: &HeaderMap,
    query: Result<Query<DrainQuery>, QueryRejection>,
    is_drained: bool,
) -> Response {
    // A page of another site can send this content type only after a CORS preflight, which the
    // gateway does not answer.
    let is_json = headers.get(CONTENT_TYPE).is_some_and(|value| value == "application/json");
    if !is_json {
        return error_response(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send Content-Type: application/json; this prevents cross-site requests of browsers",
        );
    }
    let Ok(Query(DrainQuery { backend })) = query else {
        return error_response(
            StatusCode::BAD_REQUEST,
            "name the backend as in /status: ?backend=NAME",
        );
    };
    match admin.proxy.pool.set_drained(&backend, is_drained) {
        Some(changed) => {
            let result = json!({ "backend": backend, "drained": is_drained, "changed": changed });
            without_caching(Json(result).into_response())
        }
        None => error_response(
            StatusCode::NOT_FOUND,
            "no backend has this name; /status lists the backends",
        ),
    }
}

fn error_response(status: StatusCode, problem: &str) -> Response {
    without_caching((status, Json(json!({ "error": problem }))).into_response())
}

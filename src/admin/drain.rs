//! Taking a replica out of service, and back: it gets nothing new, and finishes what it has.

use super::{Admin, fresh};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

/// Which replica.
#[derive(Debug, Deserialize)]
pub(super) struct Which {
    backend: String,
}

/// `POST /-/drain?backend=NAME`
pub(super) async fn drain(
    State(admin): State<Arc<Admin>>,
    headers: HeaderMap,
    which: Result<Query<Which>, QueryRejection>,
) -> Response {
    change(&admin, &headers, which, true)
}

/// `POST /-/undrain?backend=NAME`
pub(super) async fn undrain(
    State(admin): State<Arc<Admin>>,
    headers: HeaderMap,
    which: Result<Query<Which>, QueryRejection>,
) -> Response {
    change(&admin, &headers, which, false)
}

fn change(
    admin: &Admin,
    headers: &HeaderMap,
    which: Result<Query<Which>, QueryRejection>,
    is_drained: bool,
) -> Response {
    // A page of another site cannot send this type without asking first, and is not answered.
    let is_json = headers.get(CONTENT_TYPE).is_some_and(|value| value == "application/json");
    if !is_json {
        return refuse(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send Content-Type: application/json, so that no other web site can do this in a \
             browser",
        );
    }
    let Ok(Query(Which { backend })) = which else {
        return refuse(StatusCode::BAD_REQUEST, "name a replica: ?backend=NAME, as in /status");
    };
    match admin.pool.drain(&backend, is_drained) {
        Some(changed) => {
            let told = json!({ "backend": backend, "drained": is_drained, "changed": changed });
            fresh(Json(told).into_response())
        }
        None => refuse(StatusCode::NOT_FOUND, "no replica has this name; /status lists them"),
    }
}

fn refuse(status: StatusCode, problem: &str) -> Response {
    fresh((status, Json(json!({ "error": problem }))).into_response())
}

//! The routes of the admin listener.

use super::scaler::ScalerStreams;
use super::state::Admin;
use super::{authorizer, drain, endpoints, page, runbooks, scaler, streams};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Extension, Router, middleware};
use std::sync::Arc;

/// Builds the router with all routes of the admin listener.
pub fn router(admin: Arc<Admin>) -> Router {
    let authorizer = Arc::new(admin.authorizer.clone());
    let scaler_streams = Arc::<ScalerStreams>::default();
    Router::new()
        .route("/metrics", get(endpoints::get_metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(endpoints::get_readiness))
        .route("/status", get(endpoints::get_status))
        .route("/config", get(endpoints::get_configuration))
        .route("/-/reload", post(endpoints::post_reload))
        .route("/diagnose", get(endpoints::get_diagnosis))
        .route("/-/drain", post(drain::set_drained::<true>))
        .route("/-/undrain", post(drain::set_drained::<false>))
        .route("/streams", get(streams::get_streams))
        .route("/history", get(endpoints::get_history))
        .route("/decisions", get(endpoints::list_decisions))
        .route("/decisions/{*request_id}", get(endpoints::get_decision))
        .route(
            &[authorizer::SCALER_PATH, "{method}"].concat(),
            post(scaler::call),
        )
        .route(runbooks::RUNBOOKS_PATH, get(runbooks::get_runbooks))
        .route("/", get(page::get_index))
        .route("/page/{name}", get(page::get_asset))
        .fallback(|| async {
            (
                StatusCode::NOT_FOUND,
                ["not found; ", page::ENDPOINT_LIST].concat(),
            )
        })
        .layer(Extension(scaler_streams))
        .layer(middleware::from_fn_with_state(
            authorizer,
            authorizer::authorize,
        ))
        .with_state(admin)
}

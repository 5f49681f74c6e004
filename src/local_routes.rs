//! Responds to the paths of the client listener that the gateway answers itself, without a backend:
//! `/health`, `/version`, and `/v1/models` with the models of all backends in one list.

use crate::backend::pool::BackendPool;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body_util::Full;
use serde::Serialize;
use serde_json::json;
use tokenweir_core::access::ModelAllowlist;
use tokenweir_core::error::GatewayError;
use tokenweir_core::model::ModelEntry;
use tokenweir_core::openai::route::ApiRoute;

#[derive(Serialize)]
struct ModelListResponse<'a> {
    object: &'static str,
    data: Vec<&'a ModelEntry>,
}

/// The response to a route that is not forwarded to a backend. `allowed` are the models that the
/// client may use; `/v1/models` lists no others. The error `NoBackend` means that the gateway is
/// not ready.
pub fn respond(
    route: ApiRoute,
    pool: &BackendPool,
    allowed: &ModelAllowlist,
) -> Response<Full<Bytes>> {
    match route {
        ApiRoute::Models => list_models(pool, allowed),
        ApiRoute::Version => json_response(&json!({ "version": env!("CARGO_PKG_VERSION") })),
        // Like vLLM: 200 without a body while the gateway is ready.
        ApiRoute::Health if pool.is_ready() => Response::default(),
        ApiRoute::Health | ApiRoute::Forward(_) => GatewayError::NoBackend.response(),
    }
}

/// The response to `/v1/models`. The entries of models are forwarded as the backends sent them, so
/// that fields that the gateway does not know are preserved.
fn list_models(pool: &BackendPool, allowed: &ModelAllowlist) -> Response<Full<Bytes>> {
    let routes = pool.routes();
    if routes.models().is_empty() && !pool.is_ready() {
        return GatewayError::NoBackend.response();
    }
    let models = routes.models().iter().filter(|model| allowed.allow(Some(&model.id)));
    let data = models.map(|model| &model.entry).collect();
    json_response(&ModelListResponse { object: "list", data })
}

fn json_response(value: &impl Serialize) -> Response<Full<Bytes>> {
    // The serialization of these values cannot fail.
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

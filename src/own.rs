//! What the gateway answers itself on the clients' port: its health, its version, and the models
//! of all replicas as one list.

use crate::backend::pool::Pool;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body_util::Full;
use serde::Serialize;
use serde_json::json;
use tokenweir_core::access::Models;
use tokenweir_core::error::Error;
use tokenweir_core::model::Entry;
use tokenweir_core::openai::route::Route;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<&'a Entry>,
}

/// The answer of a route that is not forwarded, to a client that may use `allowed` models.
pub fn answer(route: Route, pool: &Pool, allowed: &Models) -> Response<Full<Bytes>> {
    match route {
        Route::Models => models(pool, allowed),
        Route::Version => json_answer(&json!({ "version": env!("CARGO_PKG_VERSION") })),
        // Like vLLM: 200 and no body while requests can be served.
        Route::Health if pool.is_ready() => Response::default(),
        Route::Health | Route::Forward(_) => Error::NoBackend.response(),
    }
}

/// The entries stand as the replicas sent them, so that fields we do not know survive.
fn models(pool: &Pool, allowed: &Models) -> Response<Full<Bytes>> {
    let routes = pool.routes();
    if routes.models().is_empty() && !pool.is_ready() {
        return Error::NoBackend.response();
    }
    let models = routes.models().iter().filter(|model| allowed.allow(Some(&model.id)));
    let data = models.map(|model| &model.entry).collect();
    json_answer(&List { object: "list", data })
}

fn json_answer(value: &impl Serialize) -> Response<Full<Bytes>> {
    // Values of JSON can always be written.
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

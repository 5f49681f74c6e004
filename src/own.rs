//! What the gateway answers itself on the clients' port: its health, its version, and the models
//! of all replicas as one list.

use crate::backend::pool::Pool;
use crate::error::Error;
use crate::openai::route::Route;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body_util::Full;
use serde_json::{Value, json};

/// The answer of a route that is not forwarded.
pub fn answer(route: Route, pool: &Pool) -> Response<Full<Bytes>> {
    match route {
        Route::Models => models(pool),
        Route::Version => json_answer(&json!({ "version": env!("CARGO_PKG_VERSION") })),
        // Like vLLM: 200 and no body while requests can be served.
        Route::Health if pool.is_ready() => Response::default(),
        Route::Health | Route::Forward(_) => Error::NoBackend.response(),
    }
}

/// The entries stand as the replicas sent them, so that fields we do not know survive.
fn models(pool: &Pool) -> Response<Full<Bytes>> {
    let models = pool.models();
    if models.is_empty() && !pool.is_ready() {
        return Error::NoBackend.response();
    }
    let data: Vec<Value> = models.into_values().map(|model| model.entry).collect();
    json_answer(&json!({ "object": "list", "data": data }))
}

fn json_answer(value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

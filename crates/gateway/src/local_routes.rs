//! Responds to the paths of the client listener that the gateway answers itself, without a backend:
//! `/health`, `/version`, `/v1/models` with the models of all backends in one list, and
//! `/v1/models/{model}`.

use crate::backend::pool::BackendPool;
use crate::backend::routes::RouteTable;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};
use http_body_util::Full;
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use tokenweir_engine::model::{ModelEntry, ServedModel};
use tokenweir_protocol::openai::route::{self, ApiRoute};
use tokenweir_request::access::ModelAllowlist;
use tokenweir_request::error::{self, GatewayError};
use tokenweir_routing::resilience::Availability;

#[derive(Serialize)]
struct ModelListResponse<'a> {
    object: &'static str,
    data: Vec<Cow<'a, ModelEntry>>,
    /// Extension of the gateway: models that `data` leaves out because no backend serves them now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unavailable_models: Vec<&'a str>,
    /// Extension of the gateway: for each model, the state of its backend that is closest to
    /// serving requests.
    model_states: BTreeMap<&'a str, &'static str>,
}

/// Returns the response to a route that is not forwarded to a backend. `allowed` are the models that the
/// client may use; `/v1/models` lists no others. The error `NoBackend` means that the gateway is not ready.
pub fn respond(
    route: ApiRoute,
    path: &str,
    pool: &BackendPool,
    allowed: &ModelAllowlist,
) -> Response<Full<Bytes>> {
    match route {
        ApiRoute::Models => list_models(pool, allowed),
        ApiRoute::Model => describe_model(path, pool, allowed),
        ApiRoute::Version => json_response(&json!({ "version": env!("CARGO_PKG_VERSION") })),
        // Like vLLM: 200 without a body while the gateway is ready.
        ApiRoute::Health if pool.is_ready() => Response::default(),
        _ => GatewayError::NoBackend.response(),
    }
}

/// Derives the state of a model and its entry in `/v1/models` from the current states of its
/// backends.
struct ModelStates<'a> {
    routes: &'a RouteTable,
    /// The state of each backend, by its position in the pool.
    availabilities: Vec<Availability>,
}

impl ModelStates<'_> {
    fn positions(&self, model: &ServedModel) -> impl Iterator<Item = (usize, Availability)> {
        let positions = self.routes.lookup(Some(&model.id)).backends.iter();
        positions.filter_map(|position| Some((*position, *self.availabilities.get(*position)?)))
    }

    /// Returns the state of the backend that is closest to serving requests, among the backends of
    /// the model.
    fn state(&self, model: &ServedModel) -> Availability {
        self.positions(model).map(|(_, state)| state).min().unwrap_or(Availability::Down)
    }

    /// Whether a backend of the model serves requests now.
    fn is_available(&self, model: &ServedModel) -> bool {
        is_serving(self.state(model))
    }

    /// Returns the entry of the model in `/v1/models`, with the greatest context length that can be
    /// served now.
    fn entry<'a>(&self, model: &'a ServedModel) -> Cow<'a, ModelEntry> {
        let serving = self.positions(model).filter(|(_, state)| is_serving(*state));
        let lengths = &self.routes.lookup(Some(&model.id)).lengths;
        match lengths.greatest(serving.map(|(position, _)| position)) {
            Some(length) if model.max_len != Some(length) => {
                Cow::Owned(model.entry_with_length(length))
            }
            _ => Cow::Borrowed(&model.entry),
        }
    }
}

/// Whether a backend in this state counts as serving. An ejected backend counts, because it gets
/// requests again in seconds, and at once in panic mode.
fn is_serving(state: Availability) -> bool {
    matches!(state, Availability::Available | Availability::Ejected)
}

/// Returns the response to `/v1/models/{model}`: the entry of the model in `/v1/models`. A model
/// that the client may not use is answered like one that does not exist.
fn describe_model(
    path: &str,
    pool: &BackendPool,
    allowed: &ModelAllowlist,
) -> Response<Full<Bytes>> {
    let id = route::model_id(path).unwrap_or_default();
    let id = percent_encoding::percent_decode_str(id).decode_utf8_lossy();
    let routes = pool.routes();
    let states = ModelStates { routes: &routes, availabilities: pool.availabilities() };
    let is_allowed = |model: &&ServedModel| allowed.allow(Some(&model.id));
    let mut models = routes.models().iter().filter(is_allowed);
    match models.clone().find(|model| *model.id == *id) {
        Some(model) if states.is_available(model) => json_response(&states.entry(model)),
        None if pool.is_ready() => {
            let ids: Vec<_> = models.by_ref().map(|model| &model.id).collect();
            let known = error::listed(ids.into_iter());
            let error =
                GatewayError::UnknownModel { model: error::truncate_model_name(&id), known };
            error.response()
        }
        _ => GatewayError::NoBackend.response(),
    }
}

/// Returns the response to `/v1/models`, without models that no backend serves now. The entries of
/// models are forwarded as the backends sent them, except the context length, so that fields that
/// the gateway does not know are preserved.
fn list_models(pool: &BackendPool, allowed: &ModelAllowlist) -> Response<Full<Bytes>> {
    let routes = pool.routes();
    let states = ModelStates { routes: &routes, availabilities: pool.availabilities() };
    let is_available = |model: &&ServedModel| states.is_available(model);
    let (available, unavailable): (Vec<_>, Vec<_>) = routes.models().iter().partition(is_available);
    if available.is_empty() && !pool.is_ready() {
        return GatewayError::NoBackend.response();
    }
    let is_allowed = |model: &&ServedModel| allowed.allow(Some(&model.id));
    let models = routes.models().iter().filter(is_allowed);
    let model_states = models.map(|model| (&*model.id, states.state(model).as_str())).collect();
    let data = available.into_iter().filter(is_allowed).map(|model| states.entry(model)).collect();
    let unavailable = unavailable.into_iter().filter(is_allowed).map(|model| &*model.id);
    let unavailable_models = unavailable.collect();
    json_response(&ModelListResponse { object: "list", data, unavailable_models, model_states })
}

fn json_response(value: &impl Serialize) -> Response<Full<Bytes>> {
    // The serialization of these values cannot fail.
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

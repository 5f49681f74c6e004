//! Responds to the paths of the client listener that the gateway answers itself, without a backend: `/health`,
//! `/version`, `/v1/models` with all known models in one list, and `/v1/models/{model}`.

use crate::backend::facets::PoolFacets;
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
use tokenweir_protocol::openai::{ApiRoute, route};
use tokenweir_request::access::ModelAllowlist;
use tokenweir_request::error::{self, GatewayError};
use tokenweir_routing::resilience::Availability;

#[derive(Serialize)]
struct ModelListResponse<'a> {
    object: &'static str,
    data: Vec<Cow<'a, ModelEntry>>,
    /// Extension of the gateway: models in `data` that no backend serves now. Requests for these models wait.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unavailable_models: Vec<&'a str>,
    /// Extension of the gateway: for each model, the state of its backend that is closest to
    /// serving requests.
    model_states: BTreeMap<&'a str, &'static str>,
}

/// A model that clients can request, whether or not a backend serves it now.
struct KnownModel<'a> {
    name: &'a str,
    /// The model in the list of its backends. `None`: no backend lists it.
    listed: Option<&'a ServedModel>,
}

/// Returns the response to a route that is not forwarded to a backend. `allowed`: the models that the client
/// may use. `/v1/models` lists no others. The error `NoBackend` means that the gateway is not ready.
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
        // As in vLLM, the response is 200 without a body while the gateway is ready.
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
    /// The state that options share between all backends.
    facets: &'a PoolFacets,
}

impl<'a> ModelStates<'a> {
    fn new(routes: &'a RouteTable, pool: &'a BackendPool) -> Self {
        Self {
            routes,
            availabilities: pool.availabilities(),
            facets: &pool.facets,
        }
    }

    /// The models that the client may use, sorted by name.
    fn models(&self, allowed: &ModelAllowlist) -> Vec<KnownModel<'a>> {
        let listed = self.routes.models().iter();
        let listed = listed.map(|model| KnownModel {
            name: &model.id,
            listed: Some(model),
        });
        let unlisted = self.routes.unlisted_names();
        let unlisted = unlisted.map(|name| KnownModel { name, listed: None });
        let is_allowed = |model: &KnownModel<'_>| allowed.allow(Some(model.name));
        let mut models: Vec<_> = listed.chain(unlisted).filter(is_allowed).collect();
        models.sort_by_key(|model| model.name);
        models
    }

    fn positions(&self, name: &str) -> impl Iterator<Item = (usize, Availability)> {
        let positions = self.routes.lookup(Some(name)).backends.iter();
        positions.filter_map(|position| Some((*position, *self.availabilities.get(*position)?)))
    }

    /// Returns the state of the backend that is closest to serving requests, among the backends of
    /// the model.
    fn state(&self, name: &str) -> Availability {
        self.positions(name)
            .map(|(_, state)| state)
            .min()
            .unwrap_or(Availability::Down)
    }

    /// Whether a backend of the model serves requests now, or wakes for a request. An ejected backend counts as
    /// serving, because it gets requests again in seconds, and at once in panic mode.
    fn is_available(&self, name: &str) -> bool {
        match self.state(name) {
            Availability::Available | Availability::Ejected => true,
            other => self.facets.can_activate(other),
        }
    }

    /// Returns the entry of the model in `/v1/models`, with the greatest context length of its backends.
    /// Unavailable backends count too, because long requests wait for them.
    fn entry(&self, model: &KnownModel<'a>) -> Option<Cow<'a, ModelEntry>> {
        let Some(listed) = model.listed else {
            return ServedModel::entry_of_name(model.name).map(Cow::Owned);
        };
        let is_lasting = |state| !matches!(state, Availability::ZeroWeight | Availability::Retired);
        let positions = self
            .positions(model.name)
            .filter(|(_, state)| is_lasting(*state));
        let lengths = &self.routes.lookup(Some(model.name)).lengths;
        Some(
            match lengths.greatest(positions.map(|(position, _)| position)) {
                Some(length) if listed.max_len != Some(length) => {
                    Cow::Owned(listed.entry_with_length(length))
                }
                _ => Cow::Borrowed(&listed.entry),
            },
        )
    }
}

/// Returns the response to `/v1/models/{model}`: the entry of the model in `/v1/models`. The response for a
/// model that the client may not use equals the one for an unknown model.
fn describe_model(
    path: &str,
    pool: &BackendPool,
    allowed: &ModelAllowlist,
) -> Response<Full<Bytes>> {
    let id = route::model_id(path).unwrap_or_default();
    let id = percent_encoding::percent_decode_str(id).decode_utf8_lossy();
    let routes = pool.routes();
    let states = ModelStates::new(&routes, pool);
    let models = states.models(allowed);
    let entry = models
        .iter()
        .find(|model| model.name == id)
        .and_then(|model| states.entry(model));
    if let Some(entry) = entry {
        return json_response(&entry);
    }
    let known = error::listed(models.iter().map(|model| model.name));
    GatewayError::UnknownModel {
        model: error::truncate_model_name(&id),
        known,
    }
    .response()
}

/// Returns the response to `/v1/models`: all known models, including those that no backend serves now. The
/// gateway changes only the context length of an entry, so that fields unknown to the gateway are preserved.
fn list_models(pool: &BackendPool, allowed: &ModelAllowlist) -> Response<Full<Bytes>> {
    let routes = pool.routes();
    let states = ModelStates::new(&routes, pool);
    let models = states.models(allowed);
    let names = models.iter().map(|model| model.name);
    let model_states = names
        .clone()
        .map(|name| (name, states.state(name).as_str()))
        .collect();
    let unavailable_models = names.filter(|name| !states.is_available(name)).collect();
    let data = models
        .iter()
        .filter_map(|model| states.entry(model))
        .collect();
    json_response(&ModelListResponse {
        object: "list",
        data,
        unavailable_models,
        model_states,
    })
}

fn json_response(value: &impl Serialize) -> Response<Full<Bytes>> {
    // The serialization of these values cannot fail.
    let body = serde_json::to_vec(value).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

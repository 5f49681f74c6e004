//! The allow-list of methods and paths: inference APIs are forwarded, some paths are answered by
//! the gateway, and all others are rejected.
//!
//! Backends serve their administrative endpoints next to the inference APIs on the same port, so
//! the match is exact.

use super::Api;
use http::Method;

/// How a request is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiRoute {
    /// The gateway forwards the request to a backend and measures it.
    Forward(Api),
    /// The gateway answers with the merged model list of all backends.
    Models,
    /// The gateway answers with its own health.
    Health,
    /// The gateway answers with its own version.
    Version,
}

/// Why a request has no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteError {
    /// The gateway does not serve the path.
    NotFound,
    /// The gateway serves the path with this method only.
    MethodNotAllowed(&'static str),
}

const POST: &str = "POST";
const GET: &str = "GET";

/// Method, path and route. `/tokenize` and `/detokenize` are in the table because load generators
/// call them on the base URL.
const API_ROUTES: &[(&str, &str, ApiRoute)] = &[
    (POST, "/v1/chat/completions", ApiRoute::Forward(Api::Chat)),
    (POST, "/v1/completions", ApiRoute::Forward(Api::Completions)),
    (POST, "/v1/responses", ApiRoute::Forward(Api::Responses)),
    (POST, "/v1/messages", ApiRoute::Forward(Api::Messages)),
    (POST, "/v1/embeddings", ApiRoute::Forward(Api::Embeddings)),
    (POST, "/v1/chat/completions/batch", ApiRoute::Forward(Api::Other)),
    (POST, "/v1/messages/count_tokens", ApiRoute::Forward(Api::Other)),
    (POST, "/v2/embed", ApiRoute::Forward(Api::Other)),
    (POST, "/pooling", ApiRoute::Forward(Api::Other)),
    (POST, "/classify", ApiRoute::Forward(Api::Other)),
    (POST, "/score", ApiRoute::Forward(Api::Other)),
    (POST, "/v1/score", ApiRoute::Forward(Api::Other)),
    (POST, "/rerank", ApiRoute::Forward(Api::Other)),
    (POST, "/v1/rerank", ApiRoute::Forward(Api::Other)),
    (POST, "/v2/rerank", ApiRoute::Forward(Api::Other)),
    (POST, "/v1/audio/transcriptions", ApiRoute::Forward(Api::Audio)),
    (POST, "/v1/audio/translations", ApiRoute::Forward(Api::Audio)),
    (POST, "/tokenize", ApiRoute::Forward(Api::Other)),
    (POST, "/detokenize", ApiRoute::Forward(Api::Other)),
    (GET, "/v1/models", ApiRoute::Models),
    (GET, "/health", ApiRoute::Health),
    (GET, "/ping", ApiRoute::Health),
    (GET, "/version", ApiRoute::Version),
];

impl ApiRoute {
    /// The route of a request, and its path as a static string for metric labels.
    pub fn lookup(method: &Method, path: &str) -> Result<(Self, &'static str), RouteError> {
        // The gateway is no forward proxy: CONNECT is rejected for every target, as a wrong method.
        let mut allowed = (method == Method::CONNECT).then_some(POST);
        for &(route_method, route_path, route) in API_ROUTES {
            if route_path != path {
                continue;
            }
            // HEAD is allowed where GET is.
            if route_method == method.as_str() || (route_method == GET && method == Method::HEAD) {
                return Ok((route, route_path));
            }
            allowed = Some(route_method);
        }
        Err(allowed.map_or(RouteError::NotFound, RouteError::MethodNotAllowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inference_is_forwarded_and_admin_verbs_are_not_found() {
        let chat = ApiRoute::lookup(&Method::POST, "/v1/chat/completions");
        assert_eq!(chat, Ok((ApiRoute::Forward(Api::Chat), "/v1/chat/completions")));
        for path in [
            "/v1/load_lora_adapter",
            "/collective_rpc",
            "/invocations",
            "/sleep",
            "/metrics",
            "/v1/chat/completions/",
            "//v1/chat/completions",
            "/v1/../v1/completions",
            "/v1%2fcompletions",
            "/V1/completions",
        ] {
            assert_eq!(ApiRoute::lookup(&Method::POST, path), Err(RouteError::NotFound), "{path}");
        }
    }

    #[test]
    fn a_wrong_method_is_rejected_with_the_allowed_one() {
        let result = ApiRoute::lookup(&Method::GET, "/v1/completions");
        assert_eq!(result, Err(RouteError::MethodNotAllowed("POST")));
        assert_eq!(ApiRoute::lookup(&Method::CONNECT, ""), result);
        assert_eq!(ApiRoute::lookup(&Method::HEAD, "/health"), Ok((ApiRoute::Health, "/health")));
    }
}

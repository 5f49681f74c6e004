//! The allow-list: which method and path are inference, which the gateway answers itself, and
//! that everything else is refused. A replica's admin verbs are under the same paths as its
//! inference, so the match is exact.

use super::Api;
use http::Method;

/// What to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Forward to a replica and measure.
    Forward(Api),
    /// The models of all replicas, merged.
    Models,
    /// The gateway's own health.
    Health,
    /// The gateway's own version.
    Version,
}

/// Why there is no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoute {
    /// The path is not served.
    NotFound,
    /// The path is served, but by this method.
    MethodNotAllowed(&'static str),
}

const POST: &str = "POST";
const GET: &str = "GET";

/// Method, path, route. A replica's `/tokenize` and `/detokenize` are here because load tools
/// call them on the base URL.
const ROUTES: &[(&str, &str, Route)] = &[
    (POST, "/v1/chat/completions", Route::Forward(Api::Chat)),
    (POST, "/v1/completions", Route::Forward(Api::Completions)),
    (POST, "/v1/responses", Route::Forward(Api::Responses)),
    (POST, "/v1/messages", Route::Forward(Api::Messages)),
    (POST, "/v1/embeddings", Route::Forward(Api::Embeddings)),
    (POST, "/v1/chat/completions/batch", Route::Forward(Api::Other)),
    (POST, "/v1/messages/count_tokens", Route::Forward(Api::Other)),
    (POST, "/v2/embed", Route::Forward(Api::Other)),
    (POST, "/pooling", Route::Forward(Api::Other)),
    (POST, "/classify", Route::Forward(Api::Other)),
    (POST, "/score", Route::Forward(Api::Other)),
    (POST, "/v1/score", Route::Forward(Api::Other)),
    (POST, "/rerank", Route::Forward(Api::Other)),
    (POST, "/v1/rerank", Route::Forward(Api::Other)),
    (POST, "/v2/rerank", Route::Forward(Api::Other)),
    (POST, "/v1/audio/transcriptions", Route::Forward(Api::Audio)),
    (POST, "/v1/audio/translations", Route::Forward(Api::Audio)),
    (POST, "/tokenize", Route::Forward(Api::Other)),
    (POST, "/detokenize", Route::Forward(Api::Other)),
    (GET, "/v1/models", Route::Models),
    (GET, "/health", Route::Health),
    (GET, "/ping", Route::Health),
    (GET, "/version", Route::Version),
];

impl Route {
    /// The route of a request, with the path as the table has it, for labels.
    pub fn of(method: &Method, path: &str) -> Result<(Self, &'static str), NoRoute> {
        // Nobody gets a tunnel through here, whatever it is to.
        let mut allowed = (method == Method::CONNECT).then_some(POST);
        for &(verb, known, route) in ROUTES {
            if known != path {
                continue;
            }
            // HEAD is answered wherever GET is.
            if verb == method.as_str() || (verb == GET && method == Method::HEAD) {
                return Ok((route, known));
            }
            allowed = Some(verb);
        }
        Err(allowed.map_or(NoRoute::NotFound, NoRoute::MethodNotAllowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inference_is_forwarded_and_admin_verbs_are_not_found() {
        let chat = Route::of(&Method::POST, "/v1/chat/completions");
        assert_eq!(chat, Ok((Route::Forward(Api::Chat), "/v1/chat/completions")));
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
            assert_eq!(Route::of(&Method::POST, path), Err(NoRoute::NotFound), "{path}");
        }
    }

    #[test]
    fn a_wrong_method_is_told_the_right_one() {
        let wrong = Route::of(&Method::GET, "/v1/completions");
        assert_eq!(wrong, Err(NoRoute::MethodNotAllowed("POST")));
        assert_eq!(Route::of(&Method::CONNECT, ""), wrong);
        assert_eq!(Route::of(&Method::HEAD, "/health"), Ok((Route::Health, "/health")));
    }
}

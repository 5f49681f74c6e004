//! The allow-list of methods and paths. The gateway forwards inference APIs, answers some paths itself, and
//! rejects all others.
//!
//! Backends serve their administrative endpoints on the same port as the inference APIs, so a path must equal a
//! path in the list.

use super::Api;
use http::Method;

/// How a request is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiRoute {
    /// The gateway forwards the request to a backend and measures it.
    Forward(Api),
    /// The gateway forwards the request to the backend that has the stored response.
    StoredResponse,
    /// The gateway forwards the bytes of a WebSocket in both directions.
    Realtime,
    /// The gateway answers with the merged model list of all backends.
    Models,
    /// The gateway answers with one entry of the model list.
    Model,
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
    /// The gateway serves the path, but only with these methods, written as the value of `Allow`.
    MethodNotAllowed(&'static str),
}

const POST: &str = "POST";
const GET: &str = "GET";
/// The target `*`, which means the server as a whole. Only `OPTIONS` can have it (RFC 9110 §9.3.7).
const WHOLE_SERVER: &str = "*";
/// The methods of the paths that state the health of the gateway. No other path accepts `OPTIONS`.
pub const HEALTH_METHODS: &str = "GET, HEAD, OPTIONS";
const GET_OR_DELETE: &str = "GET, DELETE";

/// The path template of one entry of the model list.
const MODEL_PATH: &str = "/v1/models/{model}";
const MODEL_PREFIX: &str = "/v1/models/";

/// The path of a stored response, as metrics and records show it.
pub const STORED_RESPONSE_PATH: &str = "/v1/responses/{response_id}";
/// The path template of the cancellation of a background response.
pub const CANCEL_RESPONSE_PATH: &str = "/v1/responses/{response_id}/cancel";
const STORED_RESPONSE_PREFIX: &str = "/v1/responses/";
const CANCEL_SUFFIX: &str = "/cancel";
/// Maximum length of a response id in a path, in bytes.
const MAX_RESPONSE_ID_BYTES: usize = 128;

/// A fixed path that the gateway serves.
struct FixedPath {
    method: &'static str,
    path: &'static str,
    route: ApiRoute,
}

const fn post(path: &'static str, api: Api) -> FixedPath {
    FixedPath {
        method: POST,
        path,
        route: ApiRoute::Forward(api),
    }
}

const fn get(path: &'static str, route: ApiRoute) -> FixedPath {
    FixedPath {
        method: GET,
        path,
        route,
    }
}

/// The fixed paths that the gateway serves. `ApiRoute::lookup_item` finds the routes of paths that contain an id.
/// `/tokenize` and `/detokenize` are in the table because load generators call these paths.
static FIXED_PATHS: &[FixedPath] = &[
    post("/v1/chat/completions", Api::Chat),
    post("/v1/completions", Api::Completions),
    post("/v1/responses", Api::Responses),
    post("/v1/messages", Api::Messages),
    post("/v1/embeddings", Api::Embeddings),
    // This API takes and returns token ids instead of text. vLLM serves this path and the render paths only
    // with `--enable-scale-out`.
    post("/inference/v1/generate", Api::Completions),
    post("/v1/chat/completions/render", Api::Other),
    post("/v1/completions/render", Api::Other),
    post("/v1/messages/render", Api::Other),
    post("/v1/responses/render", Api::Other),
    post("/v1/chat/completions/derender", Api::Other),
    post("/v1/completions/derender", Api::Other),
    post("/v1/chat/completions/batch", Api::Other),
    post("/v1/messages/count_tokens", Api::Other),
    post("/v2/embed", Api::Other),
    post("/pooling", Api::Other),
    post("/classify", Api::Other),
    post("/v1/decisions", Api::Other),
    post("/v1/systemone", Api::Other),
    post("/score", Api::Other),
    post("/v1/score", Api::Other),
    post("/rerank", Api::Other),
    post("/v1/rerank", Api::Other),
    post("/v2/rerank", Api::Other),
    post("/v1/audio/transcriptions", Api::Audio),
    post("/v1/audio/translations", Api::Audio),
    post("/tokenize", Api::Other),
    post("/detokenize", Api::Other),
    get("/v1/realtime", ApiRoute::Realtime),
    get("/v1/models", ApiRoute::Models),
    // By default, some load balancers check the health of a service at this path.
    get("/", ApiRoute::Health),
    get("/health", ApiRoute::Health),
    get("/ping", ApiRoute::Health),
    get("/version", ApiRoute::Version),
];

impl ApiRoute {
    /// The route of a request, and its path or path template for metric labels.
    pub fn lookup(method: &Method, path: &str) -> Result<(Self, &'static str), RouteError> {
        if path == WHOLE_SERVER && method == Method::OPTIONS {
            return Ok((Self::Health, WHOLE_SERVER));
        }
        // The gateway is not a forward proxy. It rejects CONNECT with 405 for every target.
        let mut allowed = (method == Method::CONNECT).then_some(POST);
        for fixed in FIXED_PATHS.iter().filter(|fixed| fixed.path == path) {
            // HEAD is allowed where GET is. OPTIONS is allowed because HAProxy checks the health of a server
            // with it.
            let is_probe = match *method {
                Method::HEAD => fixed.method == GET,
                Method::OPTIONS => fixed.route == Self::Health,
                _ => false,
            };
            if is_probe || fixed.method == method.as_str() {
                return Ok((fixed.route, fixed.path));
            }
            allowed = Some(fixed.method);
        }
        match allowed {
            Some(allowed) => Err(RouteError::MethodNotAllowed(allowed)),
            None => Self::lookup_item(method, path),
        }
    }

    /// The methods of a path, as the value of `Allow`. `None`: the gateway does not serve the path.
    pub fn methods(path: &str) -> Option<&'static str> {
        match Self::lookup(&Method::TRACE, path) {
            Err(RouteError::MethodNotAllowed(allowed)) => Some(allowed),
            _ => None,
        }
    }

    /// The route of a request whose path contains the id of a model or of a stored response.
    fn lookup_item(method: &Method, path: &str) -> Result<(Self, &'static str), RouteError> {
        let wrong_method = |allowed| Err(RouteError::MethodNotAllowed(allowed));
        if model_id(path).is_some() {
            return match *method {
                Method::GET | Method::HEAD => Ok((Self::Model, MODEL_PATH)),
                _ => wrong_method(GET),
            };
        }
        let Some((_, is_cancel)) = stored_response(path) else {
            return Err(RouteError::NotFound);
        };
        match *method {
            Method::POST if is_cancel => Ok((Self::StoredResponse, CANCEL_RESPONSE_PATH)),
            Method::GET | Method::HEAD | Method::DELETE if !is_cancel => {
                Ok((Self::StoredResponse, STORED_RESPONSE_PATH))
            }
            _ => wrong_method(if is_cancel { POST } else { GET_OR_DELETE }),
        }
    }

    /// The path of the API that the client probably meant. `None`: no known path is similar. `configured`: the
    /// paths of the configuration.
    ///
    /// Wrong base URLs often repeat or omit `/v1`, end in `/`, or have the prefix of another server.
    pub fn nearest_path<'a>(
        path: &str,
        configured: impl Iterator<Item = &'a str>,
    ) -> Option<&'a str> {
        let parts_of = |path: &str| -> Vec<String> {
            // The comparison treats plural and singular alike.
            let normalize = |part: &str| part.trim_end_matches('s').to_ascii_lowercase();
            path.split('/')
                .filter(|part| !part.is_empty())
                .map(normalize)
                .collect()
        };
        let wanted = parts_of(path);
        let known = configured.chain(FIXED_PATHS.iter().map(|fixed| fixed.path));
        let similarity = |known: &str| {
            let parts = parts_of(known);
            let version_count = usize::from(matches!(known.get(..4), Some("/v1/" | "/v2/")));
            let name = parts.get(version_count..).filter(|name| !name.is_empty())?;
            let is_whole = wanted.ends_with(&parts);
            (is_whole || wanted.ends_with(name)).then_some((name.len(), is_whole))
        };
        known
            .filter_map(|known| Some((similarity(known)?, known)))
            .max()
            .map(|(_, known)| known)
    }

    /// Whether a backend answers the request.
    pub const fn is_forwarded(self) -> bool {
        matches!(
            self,
            Self::Forward(_) | Self::StoredResponse | Self::Realtime
        )
    }
}

/// Whether the gateway itself defines the path. Paths that the configuration adds do not count.
pub fn is_api_path(path: &str) -> bool {
    FIXED_PATHS.iter().any(|fixed| fixed.path == path)
}

/// The id of the model in a path, without decoding. An id may contain `/`, encoded or not. `None`: the path is
/// not the path of a model.
pub fn model_id(path: &str) -> Option<&str> {
    path.strip_prefix(MODEL_PREFIX).filter(|id| !id.is_empty())
}

/// The id of the stored response in a path. `None`: the path is not the path of a stored response.
pub fn stored_response_id(path: &str) -> Option<&str> {
    stored_response(path).map(|(id, _)| id)
}

/// The id of the stored response in a path, and whether the path cancels the response. An id consists of ASCII
/// letters, digits, `-` and `_`. `None`: the path has no such id.
fn stored_response(path: &str) -> Option<(&str, bool)> {
    let rest = path.strip_prefix(STORED_RESPONSE_PREFIX)?;
    let (id, is_cancel) = match rest.strip_suffix(CANCEL_SUFFIX) {
        Some(id) => (id, true),
        None => (rest, false),
    };
    let is_id_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_valid = (1..=MAX_RESPONSE_ID_BYTES).contains(&id.len()) && id.bytes().all(is_id_byte);
    is_valid.then_some((id, is_cancel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inference_paths_are_forwarded_administrative_ones_not() {
        let chat = ApiRoute::lookup(&Method::POST, "/v1/chat/completions");
        assert_eq!(
            chat,
            Ok((ApiRoute::Forward(Api::Chat), "/v1/chat/completions"))
        );
        for path in [
            "/v1/load_lora_adapter",
            "/collective_rpc",
            "/invocations",
            "/v1/models/",
            "/sleep",
            "/metrics",
            "/v1/chat/completions/",
            "//v1/chat/completions",
            "/v1/../v1/completions",
            "/v1%2fcompletions",
            "/V1/completions",
        ] {
            assert_eq!(
                ApiRoute::lookup(&Method::POST, path),
                Err(RouteError::NotFound),
                "{path}"
            );
        }
    }

    #[test]
    fn a_stored_response_needs_a_valid_id() {
        let lookup = |method, path| ApiRoute::lookup(&method, path);
        let stored = ApiRoute::StoredResponse;
        assert_eq!(
            lookup(Method::GET, "/v1/responses/resp_1"),
            Ok((stored, STORED_RESPONSE_PATH))
        );
        assert_eq!(
            lookup(Method::DELETE, "/v1/responses/resp_1"),
            Ok((stored, STORED_RESPONSE_PATH))
        );
        let cancel = lookup(Method::POST, "/v1/responses/resp_1/cancel");
        assert_eq!(cancel, Ok((stored, CANCEL_RESPONSE_PATH)));
        assert_eq!(
            stored_response_id("/v1/responses/resp_1/cancel"),
            Some("resp_1")
        );
        let wrong_method = |allow| Err(RouteError::MethodNotAllowed(allow));
        assert_eq!(
            lookup(Method::POST, "/v1/responses/resp_1"),
            wrong_method("GET, DELETE")
        );
        assert_eq!(
            lookup(Method::GET, "/v1/responses/render"),
            wrong_method("POST")
        );
        let long = format!("/v1/responses/{}", "x".repeat(MAX_RESPONSE_ID_BYTES + 1));
        for path in [
            "/v1/responses/",
            "/v1/responses//cancel",
            "/v1/responses/..",
            "/v1/responses/a%2fb",
            "/v1/responses/a/b",
            "/v1/responses/a/cancel/",
            &long,
        ] {
            assert_eq!(
                lookup(Method::GET, path),
                Err(RouteError::NotFound),
                "{path}"
            );
        }
    }

    #[test]
    fn a_model_id_can_have_any_characters() {
        let lookup = |method: Method, path: &str| ApiRoute::lookup(&method, path);
        for id in ["tiny", "org/big", "org%2Fbig", "a/b/c", "a%20b:c"] {
            let path = format!("/v1/models/{id}");
            assert_eq!(
                lookup(Method::GET, &path),
                Ok((ApiRoute::Model, MODEL_PATH)),
                "{id}"
            );
            assert_eq!(
                lookup(Method::HEAD, &path),
                Ok((ApiRoute::Model, MODEL_PATH)),
                "{id}"
            );
            assert_eq!(model_id(&path), Some(id));
            let wrong_method = Err(RouteError::MethodNotAllowed("GET"));
            assert_eq!(lookup(Method::DELETE, &path), wrong_method, "{id}");
        }
    }

    #[test]
    fn the_nearest_path_is_the_suggestion() {
        let configured = ["/v1/audio/speech"];
        let nearest = |path| ApiRoute::nearest_path(path, configured.into_iter());
        for (path, expected) in [
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("/chat/completions", Some("/v1/chat/completions")),
            ("//v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1//chat/completions/", Some("/v1/chat/completions")),
            ("/V1/Chat/Completions", Some("/v1/chat/completions")),
            ("/openai/v1/completions", Some("/v1/completions")),
            ("/api/v1/models", Some("/v1/models")),
            ("/v1/models/", Some("/v1/models")),
            ("/models", Some("/v1/models")),
            ("/v1", None),
            (
                "/v1/v1/messages/count_tokens",
                Some("/v1/messages/count_tokens"),
            ),
            ("/v1/tokenize", Some("/tokenize")),
            ("/rerank/", Some("/rerank")),
            ("/v1/chat/completion", Some("/v1/chat/completions")),
            ("/audio/speech", Some("/v1/audio/speech")),
            ("/v1/load_lora_adapter", None),
            ("/sleep", None),
            ("/metrics", None),
        ] {
            assert_eq!(nearest(path), expected, "{path}");
        }
    }

    #[test]
    fn wrong_methods_are_answered_with_the_allowed_ones() {
        let result = ApiRoute::lookup(&Method::GET, "/v1/completions");
        assert_eq!(result, Err(RouteError::MethodNotAllowed("POST")));
        assert_eq!(ApiRoute::lookup(&Method::CONNECT, ""), result);
        assert_eq!(
            ApiRoute::lookup(&Method::HEAD, "/health"),
            Ok((ApiRoute::Health, "/health"))
        );
    }

    #[test]
    fn only_health_paths_take_options() {
        for path in ["/", "/health", "/ping", "*"] {
            assert_eq!(
                ApiRoute::lookup(&Method::OPTIONS, path),
                Ok((ApiRoute::Health, path))
            );
        }
        for path in ["/v1/models", "/v1/chat/completions", "/version"] {
            let result = ApiRoute::lookup(&Method::OPTIONS, path);
            assert!(
                matches!(result, Err(RouteError::MethodNotAllowed(_))),
                "{path}"
            );
        }
        assert_eq!(
            ApiRoute::lookup(&Method::OPTIONS, "/*"),
            Err(RouteError::NotFound)
        );
        assert_eq!(
            ApiRoute::lookup(&Method::GET, "*"),
            Err(RouteError::NotFound)
        );
    }
}

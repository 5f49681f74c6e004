//! Cross-origin resource sharing (CORS): answers preflight requests and sets the CORS headers of responses.
//!
//! No response allows credentialed requests, which browsers send with cookies. This does not affect API keys: a
//! script sets them in a header, so a web page without a key cannot send one.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Uri};
use tokenweir_protocol::headers::remove_headers_where;
use tokenweir_protocol::settings;

settings! {
    /// Origins of web pages that may use the API.
    #[derive(Default, Eq)]
    pub struct CorsSettings {
        /// Origins whose web pages may use the gateway, such as `https://chat.example.com`. `*`: any.
        pub origins: Vec<String>,
    }
}

/// CORS policy, built from [`CorsSettings`].
#[derive(Debug, Clone, Default)]
pub struct Cors {
    /// Allowed origins, without `*`.
    origins: Vec<HeaderValue>,
    /// Whether the settings contain `*`.
    allows_any_origin: bool,
}

const ANY_ORIGIN: &str = "*";
/// The methods that a preflight response allows for an unknown path. The browser then sends the request, and
/// the script of the web page can read the error response.
const DEFAULT_METHODS: &str = "GET, POST";
/// Response headers that scripts of a web page may read.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "x-request-id, x-gateway-error, retry-after, \
     x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
     x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens",
);
/// Time for which browsers cache a preflight response: 10 minutes. After the removal of an origin from the
/// configuration, browsers may keep sending requests of this origin for this time.
const PREFLIGHT_MAX_AGE_SECONDS: HeaderValue = HeaderValue::from_static("600");

impl CorsSettings {
    /// Index of the first origin that is neither `*` nor an origin as browsers send it. `None`: all
    /// origins are valid.
    pub fn stray(&self) -> Option<usize> {
        self.origins
            .iter()
            .position(|origin| origin != ANY_ORIGIN && !is_origin(origin))
    }
}

/// Whether a text consists of a scheme, a host and an optional port, in lower case, without a path.
fn is_origin(text: &str) -> bool {
    let uri: Option<Uri> = text.parse().ok();
    let rebuilt = uri.and_then(|uri| {
        let authority = uri
            .authority()
            .filter(|authority| !authority.as_str().contains('@'))?;
        Some(format!("{}://{authority}", uri.scheme_str()?))
    });
    rebuilt.is_some_and(|rebuilt| rebuilt == text && !text.contains(char::is_uppercase))
}

impl Cors {
    /// The policy of validated settings. An origin that is not a valid header value is ignored.
    pub fn new(settings: &CorsSettings) -> Self {
        let named_origins = settings
            .origins
            .iter()
            .filter(|origin| *origin != ANY_ORIGIN);
        Self {
            origins: named_origins
                .filter_map(|origin| origin.parse().ok())
                .collect(),
            allows_any_origin: settings.origins.iter().any(|origin| origin == ANY_ORIGIN),
        }
    }

    /// The headers of the response to a preflight request with this method and these headers. `methods` returns
    /// the methods of the path, or `None` for an unknown path. `None`: the request is no preflight request, or
    /// its origin is not allowed.
    pub fn preflight(
        &self,
        method: &Method,
        headers: &HeaderMap,
        methods: impl FnOnce() -> Option<&'static str>,
    ) -> Option<HeaderMap> {
        let is_preflight =
            method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        let origin = headers
            .get(ORIGIN)
            .filter(|origin| is_preflight && self.allows_origin(origin))?;
        let mut response = HeaderMap::new();
        self.insert_allow_origin(origin, &mut response);
        let methods = HeaderValue::from_static(methods().unwrap_or(DEFAULT_METHODS));
        response.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        response.insert(ACCESS_CONTROL_MAX_AGE, PREFLIGHT_MAX_AGE_SECONDS);
        // All requested headers are allowed: SDKs send many different headers, and no requested header is a
        // risk.
        if let Some(requested) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            response.insert(ACCESS_CONTROL_ALLOW_HEADERS, requested.clone());
            response.append(VARY, HeaderValue::from(ACCESS_CONTROL_REQUEST_HEADERS));
        }
        Some(response)
    }

    /// Sets the CORS headers of a response, and removes the CORS headers of the backend. `origin`: the `Origin`
    /// header of the request, if any.
    pub fn apply(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        remove_headers_where(headers, |name| name.as_str().starts_with("access-control-"));
        if let Some(origin) = origin.filter(|origin| self.allows_origin(origin)) {
            self.insert_allow_origin(origin, headers);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
        } else if !self.origins.is_empty() && !self.allows_any_origin {
            headers.append(VARY, HeaderValue::from(ORIGIN));
        }
    }

    fn allows_origin(&self, origin: &HeaderValue) -> bool {
        self.allows_any_origin || self.origins.contains(origin)
    }

    fn insert_allow_origin(&self, origin: &HeaderValue, headers: &mut HeaderMap) {
        if self.allows_any_origin {
            headers.insert(
                ACCESS_CONTROL_ALLOW_ORIGIN,
                HeaderValue::from_static(ANY_ORIGIN),
            );
        } else {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.append(VARY, HeaderValue::from(ORIGIN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderName;

    fn cors(origins: &[&str]) -> Cors {
        Cors::new(&CorsSettings {
            origins: origins.iter().map(|&origin| origin.into()).collect(),
        })
    }

    fn header_map(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.clone(), HeaderValue::from_static(value)))
            .collect()
    }

    fn preflight_headers(origin: &'static str) -> HeaderMap {
        header_map(&[
            (ORIGIN, origin),
            (ACCESS_CONTROL_REQUEST_METHOD, "POST"),
            (
                ACCESS_CONTROL_REQUEST_HEADERS,
                "authorization, x-stainless-os",
            ),
        ])
    }

    #[test]
    fn preflights_list_methods_and_headers() {
        let cors = cors(&["https://a.example", "http://localhost:3000"]);
        let preflight = |origin| {
            cors.preflight(&Method::OPTIONS, &preflight_headers(origin), || {
                Some("GET, DELETE")
            })
        };
        let response = preflight("https://a.example").unwrap();
        assert_eq!(response[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert_eq!(response[ACCESS_CONTROL_ALLOW_METHODS], "GET, DELETE");
        assert_eq!(
            response[ACCESS_CONTROL_ALLOW_HEADERS],
            "authorization, x-stainless-os"
        );
        assert!(!response.contains_key("access-control-allow-credentials"));
        for origin in [
            "https://b.example",
            "https://a.example.evil",
            "http://a.example",
            "null",
        ] {
            assert_eq!(preflight(origin), None, "{origin}");
        }
    }

    #[test]
    fn other_requests_get_no_preflight_headers() {
        let cors = cors(&["*"]);
        let preflight = |cors: &Cors, method: Method, headers: &HeaderMap| {
            cors.preflight(&method, headers, || None)
        };
        let mut headers = preflight_headers("https://a.example");
        let response = preflight(&cors, Method::OPTIONS, &headers).unwrap();
        assert_eq!(response[ACCESS_CONTROL_ALLOW_METHODS], DEFAULT_METHODS);
        assert!(preflight(&cors, Method::POST, &headers).is_none());
        assert!(preflight(&Cors::default(), Method::OPTIONS, &headers).is_none());
        headers.remove(ACCESS_CONTROL_REQUEST_METHOD);
        assert!(preflight(&cors, Method::OPTIONS, &headers).is_none());
    }

    #[test]
    fn headers_of_the_backend_are_replaced() {
        let origin = HeaderValue::from_static("https://a.example");
        let applied = |cors: Cors| {
            let mut headers = header_map(&[(ACCESS_CONTROL_ALLOW_ORIGIN, "*"), (VARY, "accept")]);
            cors.apply(Some(&origin), &mut headers);
            headers
        };
        let headers = applied(cors(&["https://a.example"]));
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert_eq!(
            headers.get_all(VARY).iter().collect::<Vec<_>>(),
            ["accept", "origin"]
        );
        let headers = applied(cors(&["https://b.example"]));
        assert!(!headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
        assert_eq!(applied(Cors::default()), header_map(&[(VARY, "accept")]));
    }

    #[test]
    fn the_first_invalid_origin_is_found() {
        let invalid_index = |origin: &str| {
            CorsSettings {
                origins: vec!["*".into(), origin.into()],
            }
            .stray()
        };
        for valid in [
            "https://a.example",
            "http://localhost:3000",
            "https://[::1]:8443",
        ] {
            assert_eq!(invalid_index(valid), None, "{valid}");
        }
        let all_invalid = [
            "https://a.example/",
            "a.example",
            "https://A.example",
            "https://u@a",
            "",
            "*.",
        ];
        for invalid in all_invalid {
            assert_eq!(invalid_index(invalid), Some(1), "{invalid}");
        }
    }
}

//! Who may see what operators see.

use super::Admin;
use super::page::FOLDER;
use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;
use tokenweir_core::access::{KeyDigest, bearer};

/// The token that the port wants, and the names by which it may be asked without one.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// The digest of the token. `None`: the port has no token.
    pub token: Option<KeyDigest>,
    /// Whether `/metrics` needs no token.
    pub has_open_metrics: bool,
    /// Host names that are believed without a token, besides `localhost` and addresses.
    pub hosts: Vec<String>,
}

impl Guard {
    fn lets_in(&self, path: &str, headers: &HeaderMap) -> bool {
        let is_open = match path {
            // The page has nothing to hide: it asks for the token itself.
            "/" => true,
            path if is_probe(path) || path.starts_with(FOLDER) => true,
            "/metrics" => self.has_open_metrics,
            _ => false,
        };
        let is_known = |token: &KeyDigest| {
            bearer(headers).is_some_and(|sent| KeyDigest::of(sent).is_same(token))
        };
        is_open || self.token.as_ref().is_none_or(is_known)
    }

    /// Why a request is refused although it has the token, if the port has one.
    ///
    /// A web page can make its own host name resolve to the gateway (DNS rebinding). Its requests
    /// then have the page's origin, so a browser lets the page read the answers. They name the
    /// page's host, so without a token only hosts that a page cannot have are answered.
    fn refusal(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<&'static str> {
        let host = host(uri, headers);
        // Programs that send no Host are no browsers.
        let is_believed =
            self.token.is_some() || host.as_deref().is_none_or(|host| self.believes(host));
        if *method == Method::POST {
            return (!is_own(host.as_deref(), headers, is_believed)).then_some(FOREIGN);
        }
        let is_for_any_host = is_probe(uri.path()) || uri.path() == "/metrics";
        (!is_believed && !is_for_any_host).then_some(OTHER_HOST)
    }

    /// Whether no web page can have this host as its own.
    fn believes(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_matches(['[', ']']);
        let is_name = |known: &str| name.eq_ignore_ascii_case(known);
        name.parse::<IpAddr>().is_ok()
            || is_name("localhost")
            || self.hosts.iter().any(|known| is_name(known))
    }
}

const FOREIGN: &str = "a browser sent this for a page of another origin, or of a name that anybody \
                       could let point here; use localhost, an address, a name of \
                       access.admin_hosts, or access.admin_token\n";
const OTHER_HOST: &str = "the admin port has no token, so it answers only requests for localhost, \
                          for an address, or for a name of access.admin_hosts; ask by one of \
                          those, add this name to access.admin_hosts, or set access.admin_token\n";

/// Whether probes ask for this path. They have no token, and name any host.
fn is_probe(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz")
}

/// The host and port that a request is for.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let host = headers.get(HOST).and_then(|value| value.to_str().ok()).map(str::to_owned);
    // In HTTP/2 the authority stands in the URI.
    host.or_else(|| uri.authority().map(ToString::to_string))
}

/// Whether a request that changes something is not sent by a browser for a page of another site.
fn is_own(host: Option<&str>, headers: &HeaderMap, is_believed: bool) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let origin = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    origin.is_some() && origin == host && is_believed
}

/// Asks for the token before anything is looked at.
pub(super) async fn check(
    State(admin): State<Arc<Admin>>,
    request: Request,
    next: Next,
) -> Response {
    let (guard, headers) = (&admin.guard, request.headers());
    if guard.lets_in(request.uri().path(), headers) {
        return match guard.refusal(request.method(), request.uri(), headers) {
            Some(problem) => (StatusCode::FORBIDDEN, problem).into_response(),
            None => next.run(request).await,
        };
    }
    let problem = "this needs the token of access.admin_token; send Authorization: Bearer TOKEN\n";
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], problem).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn guard(has_token: bool) -> Guard {
        let token = has_token.then(|| KeyDigest::of(b"token"));
        Guard { token, hosts: vec!["gateway.example".to_owned()], ..Guard::default() }
    }

    fn is_believed(origin: Option<&str>, host: &str, has_token: bool) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        let uri = Uri::from_static("/-/drain");
        guard(has_token).refusal(&Method::POST, &uri, &headers).is_none()
    }

    fn is_shown(path: &'static str, host: &str, has_token: bool) -> bool {
        let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
        guard(has_token).refusal(&Method::GET, &Uri::from_static(path), &headers).is_none()
    }

    #[test]
    fn without_a_token_a_host_name_that_a_page_could_have_is_shown_nothing() {
        for path in ["/status", "/config", "/live", "/explain/a", "/diagnose", "/", "/page/a.js"] {
            assert!(!is_shown(path, "evil.example:9090", false), "{path}");
            assert!(!is_shown(path, "localhost.evil.example", false), "{path}");
            assert!(!is_shown(path, "not a host", false), "{path}");
            for host in ["localhost:9090", "LOCALHOST", "127.0.0.1:9090", "[::1]:9090", "10.0.0.7"]
            {
                assert!(is_shown(path, host, false), "{path} {host}");
            }
            assert!(is_shown(path, "gateway.example:9090", false), "{path}");
            assert!(is_shown(path, "evil.example:9090", true), "{path}: it has the token");
        }
    }

    #[test]
    fn probes_and_metrics_are_answered_for_any_host_name() {
        for path in ["/livez", "/readyz", "/metrics"] {
            assert!(is_shown(path, "tokenweir-admin.default.svc:9090", false), "{path}");
        }
    }

    #[test]
    fn programs_and_the_page_itself_may_change_something() {
        assert!(is_believed(None, "gateway:9090", false));
        for host in ["localhost:9090", "127.0.0.1:9090", "[::1]:9090", "10.0.0.7"] {
            assert!(is_believed(Some(&format!("http://{host}")), host, false), "{host}");
        }
        assert!(is_believed(Some("https://other.example"), "other.example", true));
        assert!(is_believed(Some("https://gateway.example"), "gateway.example", false));
    }

    #[test]
    fn in_http2_the_authority_is_the_host() {
        let origin = |origin: &'static str| {
            HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))])
        };
        let uri = Uri::from_static("https://127.0.0.1:9090/-/drain");
        let refusal = |has_token, origin| guard(has_token).refusal(&Method::POST, &uri, &origin);
        assert!(refusal(false, origin("https://127.0.0.1:9090")).is_none());
        assert!(refusal(true, origin("https://evil.example")).is_some());
    }

    #[test]
    fn pages_of_other_sites_may_not() {
        for origin in ["http://evil.example", "http://127.0.0.1:8080", "null", "", "http://"] {
            assert!(!is_believed(Some(origin), "127.0.0.1:9090", true), "{origin}");
        }
    }

    #[test]
    fn a_name_that_was_made_to_point_here_is_not_believed_without_a_token() {
        assert!(!is_believed(Some("http://evil.example:9090"), "evil.example:9090", false));
        assert!(!is_believed(Some("http://localhost.evil"), "localhost.evil", false));
    }
}

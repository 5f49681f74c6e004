//! Authorizes requests to the admin listener: bearer token, trusted host names and same-origin
//! checks.

use super::page::ASSET_PATH_PREFIX;
use super::runbooks::RUNBOOKS_PATH;
use crate::config::{AccessConfig, UnreadableSecret};
use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokenweir_request::access::{KeyDigest, bearer};
use tokenweir_settings::Environment;

/// The path prefix of the calls of KEDA, the Kubernetes autoscaler, to its external scaler. The name of the
/// called method follows the prefix.
pub(super) const SCALER_PATH: &str = "/externalscaler.ExternalScaler/";

/// The token of the admin listener, and the host names that are trusted without a token.
#[derive(Debug, Clone, Default)]
pub struct AdminAuthorizer {
    /// The digest of the token. `None`: no token is required.
    pub token_digest: Option<KeyDigest>,
    /// Whether `/metrics` and the scaler for KEDA need no token.
    pub has_unauthenticated_metrics: bool,
    /// Whether the admin listener only answers requests that change nothing, because other machines can reach
    /// it and it has no token.
    pub is_read_only: bool,
    /// Host names that are trusted without a token, in addition to `localhost` and IP addresses.
    pub hosts: Vec<String>,
}

impl AdminAuthorizer {
    /// Builds the authorizer from the configuration and reads the admin token. `address` is the address
    /// of the admin listener. Fails if the token cannot be read.
    pub fn from_config(
        access: &AccessConfig,
        address: SocketAddr,
        env: impl Environment,
    ) -> Result<Self, UnreadableSecret> {
        Ok(Self {
            is_read_only: access.admin_token.is_none() && !address.ip().is_loopback(),
            token_digest: access.admin_token_digest(env)?,
            has_unauthenticated_metrics: access.unauthenticated_metrics,
            hosts: access.admin_hosts.clone(),
        })
    }

    /// Whether a request to the admin listener has the required token, or its path needs no token.
    fn is_authorized(&self, path: &str, headers: &HeaderMap) -> bool {
        let is_public = match path {
            // The page is public, because its script asks for the token and sends it with each request. Alerts
            // link to the runbooks, which are part of the documentation.
            "/" | RUNBOOKS_PATH => true,
            path if is_probe_path(path) || path.starts_with(ASSET_PATH_PREFIX) => true,
            path if is_metrics_path(path) => self.has_unauthenticated_metrics,
            _ => false,
        };
        let has_token = |token: &KeyDigest| {
            bearer(headers).is_some_and(|sent| KeyDigest::from_key(sent).is_same(token))
        };
        is_public || self.token_digest.as_ref().is_none_or(has_token)
    }

    /// Returns why a request is rejected although its token is correct or not required. `None`: the request is
    /// accepted.
    ///
    /// A web page can make its own host name resolve to the gateway (DNS rebinding). The browser then sends the
    /// page's requests to the gateway as requests to the page's own origin, and lets the page read the
    /// responses. The `Host` header of such requests is the page's host. So without a token, the gateway
    /// accepts only requests for hosts that no foreign page can have.
    fn rejection_reason(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Option<&'static str> {
        let host = request_host(uri, headers);
        // A client without a Host header is no browser.
        let is_trusted = self.token_digest.is_some()
            || host
                .as_deref()
                .is_none_or(|host| self.is_trusted_host(host));
        // KEDA uses POST for its calls to the scaler, which change nothing.
        if *method == Method::POST && !uri.path().starts_with(SCALER_PATH) {
            if self.is_read_only {
                return Some(READ_ONLY_MESSAGE);
            }
            return (!is_same_origin(host.as_deref(), headers, is_trusted))
                .then_some(FOREIGN_ORIGIN_MESSAGE);
        }
        let path = uri.path();
        let is_for_any_host = is_probe_path(path) || is_metrics_path(path) || path == RUNBOOKS_PATH;
        (!is_trusted && !is_for_any_host).then_some(UNTRUSTED_HOST_MESSAGE)
    }

    /// Whether a host is an IP address, `localhost` or a name in `access.admin_hosts`. No foreign web page can
    /// have such a host.
    fn is_trusted_host(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else {
            return false;
        };
        let name = authority.host().trim_matches(['[', ']']);
        let is_name = |trusted: &str| name.eq_ignore_ascii_case(trusted);
        name.parse::<IpAddr>().is_ok()
            || is_name("localhost")
            || self.hosts.iter().any(|trusted| is_name(trusted))
    }
}

const FOREIGN_ORIGIN_MESSAGE: &str = "rejected: a browser sent this request for a page of another \
                                      origin or of an untrusted host name; use localhost, an IP \
                                      address or a name of access.admin_hosts, or set \
                                      access.admin_token\n";
const READ_ONLY_MESSAGE: &str = "rejected: the admin listener accepts connections from other \
                                 machines and has no token, so it changes nothing; set \
                                 access.admin_token, or listen on 127.0.0.1\n";
const UNTRUSTED_HOST_MESSAGE: &str = "rejected: without access.admin_token the admin listener \
                                      accepts only requests for localhost, an IP address or a \
                                      name of access.admin_hosts; use one of these, add this name \
                                      to access.admin_hosts, or set access.admin_token\n";

/// Whether a path is that of a liveness or readiness probe. Probes send no token and may use any host
/// name.
fn is_probe_path(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz")
}

/// Whether a path is `/metrics` or a method of KEDA's external scaler. Both need the same access, because KEDA
/// sends no token and the scaler returns fewer numbers than `/metrics`.
fn is_metrics_path(path: &str) -> bool {
    path == "/metrics" || path.starts_with(SCALER_PATH)
}

/// Returns the host and the port to which a request is addressed. `None`: the request names no
/// host.
fn request_host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let host = headers
        .get(HOST)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    // In HTTP/2, the URI contains the authority.
    host.or_else(|| uri.authority().map(ToString::to_string))
}

/// Whether a POST request has no `Origin` header, so that it comes from a program, or has the trusted host of
/// the request as its origin.
fn is_same_origin(host: Option<&str>, headers: &HeaderMap, is_trusted: bool) -> bool {
    let Some(origin) = headers.get(ORIGIN) else {
        return true;
    };
    let origin = origin
        .to_str()
        .ok()
        .and_then(|origin| Some(origin.split_once("://")?.1));
    origin.is_some() && origin == host && is_trusted
}

/// Middleware that checks the token and the origin before the request is handled.
pub(super) async fn authorize(
    State(authorizer): State<Arc<AdminAuthorizer>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    if authorizer.is_authorized(request.uri().path(), headers) {
        return match authorizer.rejection_reason(request.method(), request.uri(), headers) {
            Some(problem) => (StatusCode::FORBIDDEN, problem).into_response(),
            None => next.run(request).await,
        };
    }
    let problem = "unauthorized: send Authorization: Bearer TOKEN, with access.admin_token\n";
    (
        StatusCode::UNAUTHORIZED,
        [(WWW_AUTHENTICATE, "Bearer")],
        problem,
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn authorizer(has_token: bool) -> AdminAuthorizer {
        let token = has_token.then(|| KeyDigest::from_key(b"token"));
        AdminAuthorizer {
            token_digest: token,
            hosts: vec!["gateway.example".to_owned()],
            ..AdminAuthorizer::default()
        }
    }

    fn is_post_accepted(origin: Option<&str>, host: &str, has_token: bool) -> bool {
        let mut headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
        headers.extend(origin.map(|origin| (ORIGIN, HeaderValue::from_str(origin).unwrap())));
        let uri = Uri::from_static("/-/drain");
        authorizer(has_token)
            .rejection_reason(&Method::POST, &uri, &headers)
            .is_none()
    }

    fn is_get_accepted(path: &'static str, host: &str, has_token: bool) -> bool {
        let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
        authorizer(has_token)
            .rejection_reason(&Method::GET, &Uri::from_static(path), &headers)
            .is_none()
    }

    #[test]
    fn without_a_token_changes_need_loopback() {
        let settings = |address: &str, text: &str| {
            let access: AccessConfig = serde_json::from_str(text).unwrap();
            let env = |_: &str| Some("token".to_owned());
            AdminAuthorizer::from_config(&access, address.parse().unwrap(), env).unwrap()
        };
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("10.0.0.7:9090"))]);
        let rejection = |authorizer: &AdminAuthorizer, method: Method, path: &'static str| {
            authorizer.rejection_reason(&method, &Uri::from_static(path), &headers)
        };
        for address in ["0.0.0.0:9090", "[::]:9090", "10.0.0.7:9090"] {
            let open = settings(address, "{}");
            for path in ["/-/drain", "/-/undrain", "/-/reload"] {
                assert_eq!(
                    rejection(&open, Method::POST, path),
                    Some(READ_ONLY_MESSAGE)
                );
            }
            for path in ["/metrics", "/readyz", "/livez", "/status", "/"] {
                assert_eq!(rejection(&open, Method::GET, path), None, "{path}");
            }
            let closed = settings(address, r#"{ "admin_token": { "env": "T" } }"#);
            assert_eq!(rejection(&closed, Method::POST, "/-/drain"), None);
        }
        for address in ["127.0.0.1:9090", "[::1]:9090"] {
            assert_eq!(
                rejection(&settings(address, "{}"), Method::POST, "/-/drain"),
                None
            );
        }
    }

    #[test]
    fn without_a_token_untrusted_host_names_are_rejected() {
        for path in [
            "/status",
            "/config",
            "/streams",
            "/decisions/a",
            "/diagnose",
            "/",
            "/page/a.js",
        ] {
            assert!(!is_get_accepted(path, "evil.example:9090", false), "{path}");
            assert!(
                !is_get_accepted(path, "localhost.evil.example", false),
                "{path}"
            );
            assert!(!is_get_accepted(path, "not a host", false), "{path}");
            for host in [
                "localhost:9090",
                "LOCALHOST",
                "127.0.0.1:9090",
                "[::1]:9090",
                "10.0.0.7",
            ] {
                assert!(is_get_accepted(path, host, false), "{path} {host}");
            }
            assert!(
                is_get_accepted(path, "gateway.example:9090", false),
                "{path}"
            );
            assert!(
                is_get_accepted(path, "evil.example:9090", true),
                "{path}: it has the token"
            );
        }
    }

    #[test]
    fn probes_and_metrics_need_no_trusted_host() {
        for path in ["/livez", "/readyz", "/metrics"] {
            assert!(
                is_get_accepted(path, "tokenweir-admin.default.svc:9090", false),
                "{path}"
            );
        }
    }

    #[test]
    fn programs_and_the_own_origin_may_post() {
        assert!(is_post_accepted(None, "gateway:9090", false));
        for host in ["localhost:9090", "127.0.0.1:9090", "[::1]:9090", "10.0.0.7"] {
            assert!(
                is_post_accepted(Some(&format!("http://{host}")), host, false),
                "{host}"
            );
        }
        assert!(is_post_accepted(
            Some("https://other.example"),
            "other.example",
            true
        ));
        assert!(is_post_accepted(
            Some("https://gateway.example"),
            "gateway.example",
            false
        ));
    }

    #[test]
    fn an_http2_request_has_its_host_as_authority() {
        let origin = |origin: &'static str| {
            HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))])
        };
        let uri = Uri::from_static("https://127.0.0.1:9090/-/drain");
        let rejection = |has_token, origin| {
            authorizer(has_token).rejection_reason(&Method::POST, &uri, &origin)
        };
        assert!(rejection(false, origin("https://127.0.0.1:9090")).is_none());
        assert!(rejection(true, origin("https://evil.example")).is_some());
    }

    #[test]
    fn foreign_origins_and_rebound_names_cannot_post() {
        for origin in [
            "http://evil.example",
            "http://127.0.0.1:8080",
            "null",
            "",
            "http://",
        ] {
            assert!(
                !is_post_accepted(Some(origin), "127.0.0.1:9090", true),
                "{origin}"
            );
        }
        assert!(!is_post_accepted(
            Some("http://evil.example:9090"),
            "evil.example:9090",
            false
        ));
        assert!(!is_post_accepted(
            Some("http://localhost.evil"),
            "localhost.evil",
            false
        ));
    }
}

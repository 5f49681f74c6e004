//! Who may see what operators see.

use super::Admin;
use super::page::FOLDER;
use crate::access::{KeyDigest, bearer};
use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::IpAddr;
use std::sync::Arc;

/// The token that the port wants. Probes have none, so they are for everybody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Guard {
    /// Its digest. `None`: everything is for everybody.
    pub token: Option<KeyDigest>,
    /// Whether metrics are for everybody all the same.
    pub has_open_metrics: bool,
}

impl Guard {
    fn lets_in(&self, path: &str, headers: &HeaderMap) -> bool {
        let is_open = match path {
            // The page has nothing to hide: it asks for the token itself.
            "/livez" | "/readyz" | "/" => true,
            path if path.starts_with(FOLDER) => true,
            "/metrics" => self.has_open_metrics,
            _ => false,
        };
        let is_known = |token: &KeyDigest| {
            bearer(headers).is_some_and(|sent| KeyDigest::of(sent).is_same(token))
        };
        is_open || self.token.as_ref().is_none_or(is_known)
    }
}

const FOREIGN: &str = "a browser sent this for a page of another origin, or of a name that anybody \
                       could let point here; use localhost, an address, or access.admin_token\n";

/// Whether a request that changes something is not sent by a browser for a page of another site. A
/// page that is asked for by a name may be anybody's, who has let the name point here; so without a
/// token only addresses and `localhost` are believed.
fn is_own(uri: &Uri, headers: &HeaderMap, has_token: bool) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let origin = text(origin).and_then(|origin| Some(origin.split_once("://")?.1.to_owned()));
    // In HTTP/2 the authority stands in the URI.
    let host = headers.get(HOST).and_then(text);
    let host = host.or_else(|| uri.authority().map(ToString::to_string));
    let is_same = origin.is_some() && origin == host;
    let is_plain = |host: &str| {
        let authority: Option<Authority> = host.parse().ok();
        authority.is_some_and(|authority| {
            let name = authority.host().trim_matches(['[', ']']);
            name == "localhost" || name.parse::<IpAddr>().is_ok()
        })
    };
    is_same && (has_token || host.as_deref().is_some_and(is_plain))
}

/// Asks for the token before anything is looked at.
pub(super) async fn check(
    State(admin): State<Arc<Admin>>,
    request: Request,
    next: Next,
) -> Response {
    let (guard, headers) = (&admin.guard, request.headers());
    if guard.lets_in(request.uri().path(), headers) {
        if *request.method() == Method::POST
            && !is_own(request.uri(), headers, guard.token.is_some())
        {
            return (StatusCode::FORBIDDEN, FOREIGN).into_response();
        }
        return next.run(request).await;
    }
    let problem = "this needs the token of access.admin_token; send Authorization: Bearer TOKEN\n";
    (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], problem).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_believed(origin: Option<&str>, host: &str, has_token: bool) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        is_own(&Uri::from_static("/-/drain"), &headers, has_token)
    }

    #[test]
    fn programs_and_the_page_itself_may_change_something() {
        assert!(is_believed(None, "gateway:9090", false));
        for host in ["localhost:9090", "127.0.0.1:9090", "[::1]:9090", "10.0.0.7"] {
            assert!(is_believed(Some(&format!("http://{host}")), host, false), "{host}");
        }
        assert!(is_believed(Some("https://gateway.example"), "gateway.example", true));
    }

    #[test]
    fn in_http2_the_authority_is_the_host() {
        let origin = |origin: &'static str| {
            HeaderMap::from_iter([(ORIGIN, HeaderValue::from_static(origin))])
        };
        let uri = Uri::from_static("https://127.0.0.1:9090/-/drain");
        assert!(is_own(&uri, &origin("https://127.0.0.1:9090"), false));
        assert!(!is_own(&uri, &origin("https://evil.example"), true));
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

//! The live page of the admin listener. Its files are compiled into the program. Its content security
//! policy forbids files from other origins.

use axum::extract::Path;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

/// Content security policy of the live page. It allows no inline code, no files from other origins
/// and no display in a frame.
const PAGE_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// The list of endpoints: a part of the response for an unknown path, and the response for `/` to clients that
/// do not accept HTML.
pub(super) const ENDPOINT_LIST: &str = "endpoints: GET /metrics /livez /readyz /status /streams /diagnose \
                             /config /decisions /history /runbooks, a page for browsers at /, and POST /-/reload \
                             /-/drain /-/undrain\n";

/// Path prefix of the files of the live page.
pub(super) const ASSET_PATH_PREFIX: &str = "/page/";

/// Responds with the live page if the client accepts `text/html`. Other clients get the list of endpoints.
pub(super) async fn get_index(headers: HeaderMap) -> Response {
    let accepted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    if accepted
        .into_iter()
        .any(|accepted| accepted.to_ascii_lowercase().contains("text/html"))
    {
        static_html(include_str!("page/index.html"))
    } else {
        ([(VARY, "accept")], ENDPOINT_LIST).into_response()
    }
}

/// Responds with a file of the live page. `name`: its path below [`ASSET_PATH_PREFIX`].
pub(super) async fn get_asset(Path(name): Path<String>) -> Response {
    let script = match &*name {
        "page.js" => include_str!("page/page.js"),
        "tables.js" => include_str!("page/tables.js"),
        "columns.js" => include_str!("page/columns.js"),
        "verdicts.js" => include_str!("page/verdicts.js"),
        "plots.js" => include_str!("page/plots.js"),
        "backend.js" => include_str!("page/backend.js"),
        "dialogs.js" => include_str!("page/dialogs.js"),
        "history.js" => include_str!("page/history.js"),
        "request.js" => include_str!("page/request.js"),
        "words.js" => include_str!("page/words.js"),
        "page.css" => {
            return asset_response("text/css; charset=utf-8", include_str!("page/page.css"));
        }
        _ => return (StatusCode::NOT_FOUND, "not found\n").into_response(),
    };
    asset_response("text/javascript; charset=utf-8", script)
}

/// Responds with an HTML page that does not change.
pub(super) fn static_html(text: &'static str) -> Response {
    asset_response("text/html; charset=utf-8", text)
}

fn asset_response(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, PAGE_SECURITY_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        // Browsers must revalidate the page, because an update of the program changes it.
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept"),
    ];
    (headers, text).into_response()
}

//! The live page: files that are part of the program. It fetches nothing from anywhere else.

use axum::extract::Path;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

/// A file of the page.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

const ASSETS: [Asset; 8] = [
    Asset {
        name: "page.css",
        content_type: "text/css; charset=utf-8",
        text: include_str!("page/page.css"),
    },
    Asset { name: "page.js", content_type: SCRIPT, text: include_str!("page/page.js") },
    Asset { name: "tables.js", content_type: SCRIPT, text: include_str!("page/tables.js") },
    Asset { name: "columns.js", content_type: SCRIPT, text: include_str!("page/columns.js") },
    Asset { name: "verdicts.js", content_type: SCRIPT, text: include_str!("page/verdicts.js") },
    Asset { name: "plots.js", content_type: SCRIPT, text: include_str!("page/plots.js") },
    Asset { name: "dialogs.js", content_type: SCRIPT, text: include_str!("page/dialogs.js") },
    Asset { name: "words.js", content_type: SCRIPT, text: include_str!("page/words.js") },
];

/// Nothing inline, nothing from elsewhere, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// The folder of the page's files.
pub(super) const FOLDER: &str = "/page/";

/// The page for a browser, and the list of what is here for everybody else.
pub(super) async fn index(headers: HeaderMap) -> Response {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if accepted.into_iter().any(|accepted| accepted.contains("text/html")) {
        file("text/html; charset=utf-8", include_str!("page/index.html"))
    } else {
        ([(VARY, "accept")], super::INDEX).into_response()
    }
}

/// One of its files.
pub(super) async fn asset(Path(name): Path<String>) -> Response {
    match ASSETS.iter().find(|asset| asset.name == name) {
        Some(asset) => file(asset.content_type, asset.text),
        None => (StatusCode::NOT_FOUND, "not found\n").into_response(),
    }
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        // After an update of the program the page must be the new one.
        (CACHE_CONTROL, "no-cache"),
        (VARY, "accept"),
    ];
    (headers, text).into_response()
}

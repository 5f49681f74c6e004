//! `POST /-/drain` and `POST /-/undrain`: remove a backend from routing, and return it to routing. A
//! drained backend gets no new requests and completes its open requests.

use super::response::{document, without_caching};
use super::state::Admin;
use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::json;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_gateway::backend::{Drain, DrainInitiator};
use tokenweir_gateway::telemetry::sanitize;
use tokenweir_protocol::headers::media_type;
use tokenweir_protocol::units;

/// The query parameters of `/-/drain` and `/-/undrain`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainQuery {
    backend: String,
    /// Why the backend is drained. `None`: the operator gave no reason.
    reason: Option<String>,
    /// The duration of the drain, such as `10m`. `None`: the drain lasts until it is ended.
    #[serde(default, rename = "for", with = "units::OptionalDuration")]
    duration: Option<Duration>,
    /// Whether other backends take over the open streams of the backend. Streams that cannot be continued stay.
    #[serde(default)]
    migrate: bool,
}

/// The address of the client of an admin connection. `None`: the request did not arrive over a socket.
type Peer = Option<Extension<ConnectInfo<SocketAddr>>>;

/// Maximum length of the reason of a drain, in characters.
const MAX_REASON_CHARS: usize = 200;

/// Handles `POST /-/drain?backend=NAME&reason=TEXT&for=DURATION&migrate=true` and, if `IS_DRAINED` is false,
/// `POST /-/undrain?backend=NAME`.
pub(super) async fn set_drained<const IS_DRAINED: bool>(
    State(admin): State<Arc<Admin>>,
    peer: Peer,
    headers: HeaderMap,
    query: Result<Query<DrainQuery>, QueryRejection>,
) -> Response {
    let DrainQuery {
        backend,
        reason,
        duration,
        migrate,
    } = match check_request(&headers, query, IS_DRAINED) {
        Ok(request) => request,
        Err((status, problem)) => return error_response(status, &problem),
    };
    let initiator = DrainInitiator::Operator {
        peer: peer.map(|Extension(ConnectInfo(peer))| peer.ip().to_canonical()),
        has_token: admin.authorizer.token_digest.is_some(),
    };
    let pool = &admin.proxy.pool;
    let changed = if IS_DRAINED {
        pool.drain(
            &backend,
            Drain::begin(initiator, reason.map(Into::into), duration),
        )
    } else {
        pool.undrain(&backend, initiator)
    };
    match changed {
        Some(changed) => {
            let mut result =
                json!({ "backend": backend, "drained": IS_DRAINED, "changed": changed });
            if migrate {
                result["migrating"] = admin.proxy.open_streams.move_streams(&backend).into();
            }
            document(result)
        }
        None => error_response(
            StatusCode::NOT_FOUND,
            "no backend has this name; /status lists the backends",
        ),
    }
}

/// Checks the content type and the query of a drain or undrain request. Returns the query. The error is the
/// status and the text of the error response.
fn check_request(
    headers: &HeaderMap,
    query: Result<Query<DrainQuery>, QueryRejection>,
    is_drained: bool,
) -> Result<DrainQuery, (StatusCode, Cow<'static, str>)> {
    // A web page of another site can send the content type `application/json` only after a CORS
    // preflight, which the admin listener does not answer.
    if !media_type(headers).eq_ignore_ascii_case("application/json") {
        let problem =
            "send Content-Type: application/json; this prevents cross-site requests of browsers";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, problem.into()));
    }
    let bad_request = |problem: Cow<'static, str>| (StatusCode::BAD_REQUEST, problem);
    let rejected = |rejection: QueryRejection| {
        bad_request(format!("{}; {QUERY_HELP}", rejection.body_text()).into())
    };
    let Query(mut query) = query.map_err(rejected)?;
    if !is_drained && (query.reason.is_some() || query.duration.is_some() || query.migrate) {
        let problem = "`reason`, `for` and `migrate` are parameters of /-/drain only";
        return Err(bad_request(problem.into()));
    }
    if let Some(reason) = query.reason.take() {
        query.reason = checked_reason(&reason).map_err(|problem| bad_request(problem.into()))?;
    }
    if query.duration.is_some_and(|duration| duration.is_zero()) {
        return Err(bad_request("`for` must be longer than zero".into()));
    }
    Ok(query)
}

/// The allowed query parameters, for error messages.
const QUERY_HELP: &str = "the parameters are backend=NAME, as in /status, and for a drain also \
                          reason=TEXT, for=DURATION, such as 10m, and migrate=true";

/// Returns the reason of a drain without surrounding white space. `None`: the reason is empty. The
/// reason appears in logs and on terminals, so it must not contain control characters.
fn checked_reason(reason: &str) -> Result<Option<String>, &'static str> {
    let reason = reason.trim();
    if reason.chars().count() > MAX_REASON_CHARS {
        Err("`reason` has more than 200 characters")
    } else if reason.chars().any(sanitize::is_control_or_bidi) {
        Err("`reason` contains a control character")
    } else {
        Ok((!reason.is_empty()).then(|| reason.into()))
    }
}

fn error_response(status: StatusCode, problem: &str) -> Response {
    without_caching((status, Json(json!({ "error": problem }))).into_response())
}

//! Reason, status, fault, error type and retry time of every [`GatewayError`].

use super::gateway_error::{GatewayError, RateLimitKind, StartError};
use Fault::{Backend, Client, Gateway};
use http::StatusCode;
use http::StatusCode as S;

/// The reasons of requests that were shed because no backend had capacity.
pub const SHED_REASONS: &[&str] = &["saturated", "shed", "queue_timeout", "late"];

/// The party that caused an error with which the gateway answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The client is at fault: the request cannot succeed unchanged, or it exceeds a limit of the
    /// client.
    Client,
    /// A backend is at fault.
    Backend,
    /// Neither the client nor a single backend is at fault. The gateway or all backends lack capacity, or the
    /// gateway has a defect.
    Gateway,
}

/// One row of the error table.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorRow {
    /// One of [`REASONS`].
    pub(super) reason: &'static str,
    pub(super) status: StatusCode,
    pub(super) fault: Fault,
    /// The value of `error.type`: the type that vLLM defines for the error, if it defines one.
    pub(super) kind: &'static str,
}

/// All errors, in the order of the label values.
const ROWS: [ErrorRow; 45] = [
    row("not_found", S::NOT_FOUND, Client, "NotFoundError"),
    row("wrong_path", S::NOT_FOUND, Client, "NotFoundError"),
    row(
        "method_not_allowed",
        S::METHOD_NOT_ALLOWED,
        Client,
        BAD_REQUEST,
    ),
    row(
        "upgrade_not_offered",
        S::UPGRADE_REQUIRED,
        Client,
        BAD_REQUEST,
    ),
    row(
        "websocket_required",
        S::UPGRADE_REQUIRED,
        Client,
        BAD_REQUEST,
    ),
    row("response_not_found", S::NOT_FOUND, Client, "NotFoundError"),
    row("bad_body", S::BAD_REQUEST, Client, BAD_REQUEST),
    row("signed_body", S::BAD_REQUEST, Client, BAD_REQUEST),
    row("engine_control", S::BAD_REQUEST, Client, BAD_REQUEST),
    row("request_cap", S::BAD_REQUEST, Client, BAD_REQUEST),
    row("bad_head", S::BAD_REQUEST, Client, BAD_REQUEST),
    row(
        "head_too_large",
        S::REQUEST_HEADER_FIELDS_TOO_LARGE,
        Client,
        BAD_REQUEST,
    ),
    row("uri_too_long", S::URI_TOO_LONG, Client, BAD_REQUEST),
    row(
        "encoded_body",
        S::UNSUPPORTED_MEDIA_TYPE,
        Client,
        BAD_REQUEST,
    ),
    row("body_too_large", S::PAYLOAD_TOO_LARGE, Client, BAD_REQUEST),
    row("body_cut", S::BAD_REQUEST, Client, BAD_REQUEST),
    row(
        "invalid_api_key",
        S::UNAUTHORIZED,
        Client,
        "invalid_request_error",
    ),
    row(
        "invalid_token",
        S::UNAUTHORIZED,
        Client,
        "invalid_request_error",
    ),
    row(
        "model_not_allowed",
        S::FORBIDDEN,
        Client,
        "PermissionDeniedError",
    ),
    row(
        "idempotency_key",
        S::UNPROCESSABLE_ENTITY,
        Client,
        "UnprocessableEntityError",
    ),
    row("last_event_id", S::PRECONDITION_FAILED, Client, BAD_REQUEST),
    row("request_limit", S::TOO_MANY_REQUESTS, Client, "requests"),
    row("token_limit", S::TOO_MANY_REQUESTS, Client, "tokens"),
    row(
        "concurrency_limit",
        S::TOO_MANY_REQUESTS,
        Client,
        "requests",
    ),
    row("body_timeout", S::REQUEST_TIMEOUT, Client, BAD_REQUEST),
    row("client_busy", S::TOO_MANY_REQUESTS, Client, TOO_MANY),
    row("overloaded", S::SERVICE_UNAVAILABLE, Gateway, UNAVAILABLE),
    row(
        "gateway_exhausted",
        S::SERVICE_UNAVAILABLE,
        Gateway,
        UNAVAILABLE,
    ),
    row("body_memory", S::SERVICE_UNAVAILABLE, Gateway, UNAVAILABLE),
    row(
        "no_issuer_keys",
        S::SERVICE_UNAVAILABLE,
        Gateway,
        UNAVAILABLE,
    ),
    row("unknown_model", S::NOT_FOUND, Client, "NotFoundError"),
    row("no_backend", S::SERVICE_UNAVAILABLE, Gateway, UNAVAILABLE),
    row("request_loop", S::LOOP_DETECTED, Gateway, INTERNAL),
    row("saturated", S::TOO_MANY_REQUESTS, Gateway, TOO_MANY),
    row("shed", S::TOO_MANY_REQUESTS, Gateway, TOO_MANY),
    row("queue_timeout", S::TOO_MANY_REQUESTS, Gateway, TOO_MANY),
    row("late", S::TOO_MANY_REQUESTS, Gateway, TOO_MANY),
    row("connection_reset", S::BAD_GATEWAY, Backend, BAD_GATEWAY),
    row("bad_response", S::BAD_GATEWAY, Backend, BAD_GATEWAY),
    row("timeout", S::GATEWAY_TIMEOUT, Backend, TIMEOUT),
    row("first_output_timeout", S::GATEWAY_TIMEOUT, Backend, TIMEOUT),
    row("client_timeout", S::GATEWAY_TIMEOUT, Client, TIMEOUT),
    row("total_timeout", S::GATEWAY_TIMEOUT, Gateway, TIMEOUT),
    row("poison", S::BAD_GATEWAY, Backend, BAD_GATEWAY),
    INTERNAL_ERROR,
];
const INTERNAL_ERROR: ErrorRow = row("internal", S::INTERNAL_SERVER_ERROR, Gateway, INTERNAL);
const BAD_REQUEST: &str = "BadRequestError";
const TOO_MANY: &str = "TooManyRequestsError";
const UNAVAILABLE: &str = "ServiceUnavailableError";
const INTERNAL: &str = "InternalServerError";
const BAD_GATEWAY: &str = "BadGatewayError";
const TIMEOUT: &str = "GatewayTimeoutError";

/// The reasons of all errors: the values of the `reason` label, of the `x-gateway-error` header and
/// of the span attribute.
pub const REASONS: &[&str] = &{
    let mut reasons = [""; ROWS.len()];
    let mut index = 0;
    while index < reasons.len() {
        reasons[index] = ROWS[index].reason;
        index += 1;
    }
    reasons
};

const fn row(
    reason: &'static str,
    status: StatusCode,
    fault: Fault,
    kind: &'static str,
) -> ErrorRow {
    ErrorRow {
        reason,
        status,
        fault,
        kind,
    }
}

impl GatewayError {
    pub(super) fn row(&self) -> ErrorRow {
        let reason = self.reason();
        let found = ROWS.iter().find(|row| row.reason == reason);
        let row = *found.unwrap_or(&INTERNAL_ERROR);
        if matches!(
            self,
            Self::Option(StartError {
                is_conflict: true,
                ..
            })
        ) {
            return ErrorRow {
                status: S::CONFLICT,
                kind: "ConflictError",
                ..row
            };
        }
        row
    }

    /// The reason in metrics, in spans and in the `x-gateway-error` header: one of [`REASONS`].
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotFound { nearest: None, .. } => "not_found",
            Self::NotFound { .. } => "wrong_path",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::UpgradeNotOffered { .. } => "upgrade_not_offered",
            Self::WebSocketRequired => "websocket_required",
            Self::ResponseNotFound { .. } => "response_not_found",
            Self::BadBody(_) => "bad_body",
            Self::SignedBody { .. } | Self::SignedField { .. } => "signed_body",
            Self::EngineControl { .. } => "engine_control",
            Self::RequestCap { .. } => "request_cap",
            Self::BadHead => "bad_head",
            Self::HeadTooLarge => "head_too_large",
            Self::UriTooLong => "uri_too_long",
            Self::EncodedBody { .. } => "encoded_body",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::IncompleteBody => "body_cut",
            Self::InvalidApiKey => "invalid_api_key",
            Self::InvalidToken => "invalid_token",
            Self::ModelNotAllowed { .. } => "model_not_allowed",
            Self::Option(error) => error.reason,
            Self::RateLimited { limited, .. } => limited.reason(),
            Self::BodyTimeout { .. } => "body_timeout",
            Self::ClientBusy => "client_busy",
            Self::Overloaded => "overloaded",
            Self::Exhausted => "gateway_exhausted",
            Self::BodyMemory => "body_memory",
            Self::NoIssuerKeys => "no_issuer_keys",
            Self::UnknownModel { .. } => "unknown_model",
            Self::NoBackend => "no_backend",
            Self::Loop => "request_loop",
            Self::Saturated { .. } => "saturated",
            Self::Shed { .. } => "shed",
            Self::QueueTimeout { .. } => "queue_timeout",
            Self::Late { .. } => "late",
            Self::Closed => "connection_reset",
            Self::Garbage => "bad_response",
            Self::ResponseHeadTimeout { .. } => "timeout",
            Self::FirstOutputTimeout { .. } => "first_output_timeout",
            Self::ClientTimeout { .. } => "client_timeout",
            Self::TotalTimeout { .. } => "total_timeout",
            Self::Poison => "poison",
            Self::Internal => "internal",
        }
    }

    /// The value of `error.code`, if OpenAI defines one. `None`: the status serves as the code.
    pub(super) const fn code(&self) -> Option<&'static str> {
        match self {
            Self::InvalidApiKey | Self::InvalidToken => Some("invalid_api_key"),
            Self::RateLimited { .. } => Some("rate_limit_exceeded"),
            Self::UnknownModel { .. } => Some("model_not_found"),
            _ => None,
        }
    }

    /// The value of `error.param`: the name of the field that caused the error.
    pub(super) const fn param(&self) -> Option<&'static str> {
        match self {
            Self::ModelNotAllowed { .. } | Self::SignedBody { .. } | Self::UnknownModel { .. } => {
                Some("model")
            }
            Self::SignedField { field }
            | Self::EngineControl { field, .. }
            | Self::RequestCap { field, .. } => Some(field),
            _ => None,
        }
    }

    /// The value of `Retry-After`, in seconds. `None`: the response has no such header.
    pub(super) const fn retry_after(&self) -> Option<u32> {
        match self {
            Self::RateLimited { retry_after, .. }
            | Self::Saturated { retry_after }
            | Self::Shed { retry_after }
            | Self::QueueTimeout { retry_after, .. }
            | Self::Late { retry_after, .. } => Some(*retry_after),
            Self::Option(StartError {
                is_conflict: true, ..
            })
            | Self::ClientBusy
            | Self::Overloaded
            | Self::Exhausted
            | Self::BodyMemory
            | Self::NoIssuerKeys
            | Self::NoBackend => Some(1),
            _ => None,
        }
    }
}

impl RateLimitKind {
    const fn reason(self) -> &'static str {
        match self {
            Self::Requests | Self::RequestsPerDay | Self::RequestsPerMonth => "request_limit",
            Self::Tokens | Self::TokensPerDay | Self::TokensPerMonth => "token_limit",
            Self::Concurrency => "concurrency_limit",
        }
    }
}

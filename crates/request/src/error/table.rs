//! Reason, status, fault, error type and retry time of every [`GatewayError`].

use super::gateway_error::{GatewayError, RateLimitKind};
use Fault::{Backend, Client, Gateway};
use http::StatusCode;

/// The reasons of requests that were shed because no backend had capacity.
pub const SHED_REASONS: &[&str] = &["saturated", "shed", "queue_timeout", "late"];

/// The party that caused an error with which the gateway answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The client is at fault: the request cannot succeed unchanged, or it exceeds a limit of the
    /// client.
    Client,
    /// A backend caused the error.
    Backend,
    /// Neither the client nor a single backend is at fault. The gateway or all backends lack capacity, or the
    /// gateway has a defect.
    Gateway,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorRow {
    pub(super) reason: &'static str,
    status: u16,
    pub(super) fault: Fault,
}

/// All errors, in the order of the label values.
const ROWS: &[ErrorRow] = &[
    row("not_found", 404, Client),
    row("wrong_path", 404, Client),
    row("method_not_allowed", 405, Client),
    row("upgrade_not_offered", 426, Client),
    row("websocket_required", 426, Client),
    row("response_not_found", 404, Client),
    row("bad_body", 400, Client),
    row("signed_body", 400, Client),
    row("engine_control", 400, Client),
    row("request_cap", 400, Client),
    row("bad_head", 400, Client),
    row("head_too_large", 431, Client),
    row("uri_too_long", 414, Client),
    row("encoded_body", 415, Client),
    row("body_too_large", 413, Client),
    row("body_cut", 400, Client),
    row("invalid_api_key", 401, Client),
    row("invalid_token", 401, Client),
    row("model_not_allowed", 403, Client),
    row("idempotency_key", 422, Client),
    row("last_event_id", 412, Client),
    row("request_limit", 429, Client),
    row("token_limit", 429, Client),
    row("concurrency_limit", 429, Client),
    row("body_timeout", 408, Client),
    row("client_busy", 429, Client),
    row("overloaded", 503, Gateway),
    row("gateway_exhausted", 503, Gateway),
    row("body_memory", 503, Gateway),
    row("no_issuer_keys", 503, Gateway),
    row("usage_unknown", 503, Gateway),
    row("unknown_model", 404, Client),
    row("no_backend", 503, Gateway),
    row("request_loop", 508, Gateway),
    row("saturated", 429, Gateway),
    row("shed", 429, Gateway),
    row("queue_timeout", 429, Gateway),
    row("late", 429, Gateway),
    row("connection_reset", 502, Backend),
    row("bad_response", 502, Backend),
    row("timeout", 504, Backend),
    row("first_output_timeout", 504, Backend),
    row("client_timeout", 504, Client),
    row("total_timeout", 504, Gateway),
    row("poison", 502, Backend),
    INTERNAL_ERROR,
];
const INTERNAL_ERROR: ErrorRow = row("internal", 500, Gateway);

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

const fn row(reason: &'static str, status: u16, fault: Fault) -> ErrorRow {
    ErrorRow {
        reason,
        status,
        fault,
    }
}

impl ErrorRow {
    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The value of `error.type`: the type that vLLM defines for the status, if it defines one.
    pub(super) fn kind(&self) -> &'static str {
        match (self.status, self.reason) {
            (_, "request_limit" | "concurrency_limit") => "requests",
            (_, "token_limit") => "tokens",
            (401, _) => "invalid_request_error",
            (403, _) => "PermissionDeniedError",
            (404, _) => "NotFoundError",
            (409, _) => "ConflictError",
            (422, _) => "UnprocessableEntityError",
            (429, _) => "TooManyRequestsError",
            (502, _) => "BadGatewayError",
            (503, _) => "ServiceUnavailableError",
            (504, _) => "GatewayTimeoutError",
            (500.., _) => "InternalServerError",
            _ => "BadRequestError",
        }
    }
}

impl GatewayError {
    pub(super) fn row(&self) -> ErrorRow {
        let reason = self.reason();
        let found = ROWS.iter().find(|row| row.reason == reason);
        let row = *found.unwrap_or(&INTERNAL_ERROR);
        if let Self::Option(error) = self {
            let status = error.status;
            return ErrorRow { status, ..row };
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
            Self::UsageUnknown => "usage_unknown",
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
            Self::Option(error) => error.retry_after,
            Self::ClientBusy
            | Self::Overloaded
            | Self::Exhausted
            | Self::BodyMemory
            | Self::NoIssuerKeys
            | Self::UsageUnknown
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

//! Status, fault, error type and retry time of every [`GatewayError`].

use super::gateway_error::{GatewayError, IdempotencyProblem, RateLimitKind};
use http::StatusCode;

/// The reasons of all errors: the values of the `reason` label, of the `x-gateway-error` header and
/// of the span attribute.
pub const REASONS: &[&str] = &[
    "not_found",
    "method_not_allowed",
    "upgrade_not_offered",
    "websocket_required",
    "response_not_found",
    "bad_body",
    "signed_body",
    "engine_control",
    "bad_head",
    "head_too_large",
    "uri_too_long",
    "encoded_body",
    "body_too_large",
    "body_cut",
    "invalid_api_key",
    "model_not_allowed",
    "idempotency_key",
    "last_event_id",
    "request_limit",
    "token_limit",
    "concurrency_limit",
    "body_timeout",
    "client_busy",
    "overloaded",
    "gateway_exhausted",
    "body_memory",
    "unknown_model",
    "no_backend",
    "request_loop",
    "saturated",
    "shed",
    "queue_timeout",
    "late",
    "connection_reset",
    "bad_response",
    "timeout",
    "first_output_timeout",
    "client_timeout",
    "total_timeout",
    "poison",
    "internal",
];

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
    /// Neither a client nor a single backend is at fault: the gateway or all backends lack
    /// capacity, or the gateway has a defect.
    Gateway,
}

/// One row of the error table.
#[derive(Debug, Clone, Copy)]
pub(super) struct ErrorRow {
    pub(super) status: StatusCode,
    pub(super) fault: Fault,
    /// The value of `error.type`. If vLLM defines a type for the error, it is that type.
    pub(super) kind: &'static str,
    /// One of [`REASONS`].
    pub(super) reason: &'static str,
    /// The value of `error.code`, if OpenAI defines one. `None`: the status is the code.
    pub(super) code: Option<&'static str>,
    /// The value of `error.param`: the name of the field that caused the error.
    pub(super) param: Option<&'static str>,
    /// The value of `Retry-After`, in seconds. `None`: the response has no such header.
    pub(super) retry_after: Option<u32>,
}

const fn row(
    status: StatusCode,
    fault: Fault,
    kind: &'static str,
    reason: &'static str,
) -> ErrorRow {
    ErrorRow { status, fault, kind, reason, code: None, param: None, retry_after: None }
}

impl GatewayError {
    pub(super) fn row(&self) -> ErrorRow {
        use Fault::{Backend, Client, Gateway};
        use StatusCode as S;
        let too_many = |reason, retry_after: u32| ErrorRow {
            retry_after: Some(retry_after),
            ..row(S::TOO_MANY_REQUESTS, Gateway, "TooManyRequestsError", reason)
        };
        let unavailable = |reason| ErrorRow {
            retry_after: Some(1),
            ..row(S::SERVICE_UNAVAILABLE, Gateway, "ServiceUnavailableError", reason)
        };
        let bad_request = |status, reason| row(status, Client, "BadRequestError", reason);
        let not_found = |reason| row(S::NOT_FOUND, Client, "NotFoundError", reason);
        let timeout = |fault, reason| row(S::GATEWAY_TIMEOUT, fault, "GatewayTimeoutError", reason);
        match self {
            Self::InvalidApiKey => ErrorRow {
                code: Some("invalid_api_key"),
                ..row(S::UNAUTHORIZED, Client, "invalid_request_error", "invalid_api_key")
            },
            Self::ModelNotAllowed { .. } => ErrorRow {
                param: Some("model"),
                ..row(S::FORBIDDEN, Client, "PermissionDeniedError", "model_not_allowed")
            },
            Self::RateLimited { limited, retry_after, .. } => {
                let (kind, reason) = limited.error_type_and_reason();
                ErrorRow {
                    fault: Client,
                    kind,
                    code: Some("rate_limit_exceeded"),
                    ..too_many(reason, *retry_after)
                }
            }
            Self::NotFound { .. } => not_found("not_found"),
            Self::MethodNotAllowed { .. } => {
                bad_request(S::METHOD_NOT_ALLOWED, "method_not_allowed")
            }
            Self::UpgradeNotOffered { .. } => {
                bad_request(S::UPGRADE_REQUIRED, "upgrade_not_offered")
            }
            Self::WebSocketRequired => bad_request(S::UPGRADE_REQUIRED, "websocket_required"),
            Self::ResponseNotFound { .. } => not_found("response_not_found"),
            Self::BadBody(_) => bad_request(S::BAD_REQUEST, "bad_body"),
            Self::SignedBody { .. } => {
                ErrorRow { param: Some("model"), ..bad_request(S::BAD_REQUEST, "signed_body") }
            }
            Self::SignedField { field } => {
                ErrorRow { param: Some(field), ..bad_request(S::BAD_REQUEST, "signed_body") }
            }
            Self::EngineControl { field, .. } => {
                ErrorRow { param: Some(field), ..bad_request(S::BAD_REQUEST, "engine_control") }
            }
            Self::BadHead => bad_request(S::BAD_REQUEST, "bad_head"),
            Self::HeadTooLarge => bad_request(S::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large"),
            Self::UriTooLong => bad_request(S::URI_TOO_LONG, "uri_too_long"),
            Self::EncodedBody { .. } => bad_request(S::UNSUPPORTED_MEDIA_TYPE, "encoded_body"),
            Self::BodyTooLarge { .. } => bad_request(S::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::IncompleteBody => bad_request(S::BAD_REQUEST, "body_cut"),
            Self::IdempotencyKey(IdempotencyProblem::OtherRequest) => {
                row(S::UNPROCESSABLE_ENTITY, Client, "UnprocessableEntityError", "idempotency_key")
            }
            Self::IdempotencyKey(IdempotencyProblem::TooManyReaders) => ErrorRow {
                retry_after: Some(1),
                ..row(S::CONFLICT, Client, "ConflictError", "idempotency_key")
            },
            Self::IdempotencyKey(IdempotencyProblem::UnknownEvent) => {
                bad_request(S::PRECONDITION_FAILED, "last_event_id")
            }
            Self::BodyTimeout { .. } => bad_request(S::REQUEST_TIMEOUT, "body_timeout"),
            Self::ClientBusy => ErrorRow {
                retry_after: Some(1),
                ..row(S::TOO_MANY_REQUESTS, Client, "TooManyRequestsError", "client_busy")
            },
            Self::Overloaded => unavailable("overloaded"),
            Self::Exhausted => unavailable("gateway_exhausted"),
            Self::BodyMemory => unavailable("body_memory"),
            Self::UnknownModel { .. } => ErrorRow {
                code: Some("model_not_found"),
                param: Some("model"),
                ..not_found("unknown_model")
            },
            Self::NoBackend => unavailable("no_backend"),
            Self::Loop => row(S::LOOP_DETECTED, Gateway, "InternalServerError", "request_loop"),
            Self::Saturated { retry_after } => too_many("saturated", *retry_after),
            Self::Shed { retry_after } => too_many("shed", *retry_after),
            Self::QueueTimeout { retry_after, .. } => too_many("queue_timeout", *retry_after),
            Self::Late { retry_after, .. } => too_many("late", *retry_after),
            Self::Closed => row(S::BAD_GATEWAY, Backend, "BadGatewayError", "connection_reset"),
            Self::Garbage => row(S::BAD_GATEWAY, Backend, "BadGatewayError", "bad_response"),
            Self::ResponseHeadTimeout { .. } => timeout(Backend, "timeout"),
            Self::FirstOutputTimeout { .. } => timeout(Backend, "first_output_timeout"),
            Self::ClientTimeout { .. } => timeout(Client, "client_timeout"),
            Self::TotalTimeout { .. } => timeout(Gateway, "total_timeout"),
            Self::Poison => row(S::BAD_GATEWAY, Backend, "BadGatewayError", "poison"),
            Self::Internal => {
                row(S::INTERNAL_SERVER_ERROR, Gateway, "InternalServerError", "internal")
            }
        }
    }
}

impl RateLimitKind {
    /// The value of `error.type`, as OpenAI defines it, and the reason, one of [`REASONS`].
    const fn error_type_and_reason(self) -> (&'static str, &'static str) {
        match self {
            Self::Requests => ("requests", "request_limit"),
            Self::Tokens => ("tokens", "token_limit"),
            Self::Concurrency => ("requests", "concurrency_limit"),
        }
    }
}

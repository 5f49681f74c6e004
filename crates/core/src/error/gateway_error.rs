//! The errors of the gateway and their messages.

use crate::openai::request_fields::RequestBodyError;
use std::fmt;
use std::time::Duration;

/// Longest model name in an error message, in characters.
const MAX_MODEL_NAME_CHARS: usize = 100;
/// Most names that an error message lists.
const MAX_LISTED_NAMES: usize = 20;

/// Why the gateway answered a request instead of a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// The path is not served.
    #[error("the path `{path}` does not exist; the gateway serves inference APIs only")]
    NotFound {
        /// The path that the client sent.
        path: String,
    },
    /// The path is served with another method.
    #[error("this path allows the method {allow} only")]
    MethodNotAllowed {
        /// The allowed method.
        allow: &'static str,
    },
    /// The body is malformed.
    #[error("{0}")]
    BadBody(#[from] RequestBodyError),
    /// The head of the request is not valid HTTP.
    #[error("the request is not valid HTTP, or is ambiguous, so that servers parse it differently")]
    BadHead,
    /// The head of the request is too long, or has too many headers.
    #[error("the request headers are longer or more numerous than this gateway allows")]
    HeadTooLarge,
    /// The path of the request is too long.
    #[error("the request path is longer than this gateway allows")]
    UriTooLong,
    /// The gateway would have to rename the model in the body, but a header has a digest of the
    /// body.
    #[error(
        "`{model}` is an alias of this gateway: it must change the body for the backend, but a \
         header has a digest of the body; request `{served_as}` instead"
    )]
    SignedBody {
        /// The name that the client sent.
        model: String,
        /// The name of the model at the backends.
        served_as: String,
    },
    /// The gateway would have to change a field of the body, but a header has a digest of the body.
    #[error(
        "the gateway must change `{field}` in the body for the backend, but a header has a digest \
         of the body; leave that header out"
    )]
    SignedField {
        /// Name of the field.
        field: &'static str,
    },
    /// The body uses an engine-control field without the permission.
    #[error(
        "`{field}` controls the engine, and this client has no permission for it; leave it out, or \
         ask the operator of this gateway for the permission `{permission}`"
    )]
    EngineControl {
        /// Name of the field.
        field: &'static str,
        /// The permission to use the field.
        permission: &'static str,
    },
    /// The body has a `Content-Encoding`.
    #[error("the request body is encoded as `{encoding}`; send it without a Content-Encoding")]
    EncodedBody {
        /// The value of `Content-Encoding`.
        encoding: String,
    },
    /// The body is too long.
    #[error("the request body is longer than {limit} bytes, the limit of this gateway")]
    BodyTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The body ended too early.
    #[error("the request body ended before its declared length")]
    IncompleteBody,
    /// The gateway requires an API key, and the request has no valid one.
    #[error(
        "the API key is missing or unknown to this gateway; send it as `Authorization: Bearer KEY`"
    )]
    InvalidApiKey,
    /// The tenant may not use the model.
    #[error("this API key may not use {model}; GET /v1/models lists the models that it may use")]
    ModelNotAllowed {
        /// The name that the client sent, in backticks, or a text for a request without a model.
        model: String,
    },
    /// A limit of the tenant or the API key is reached.
    #[error("the limit of {allowed} {limited} is reached; retry after {retry_after} s")]
    RateLimited {
        /// The kind of limit.
        limited: RateLimitKind,
        /// The limit.
        allowed: u32,
        /// Time until a retry can succeed, in seconds.
        retry_after: u32,
    },
    /// The client paused for too long inside the body.
    #[error("no byte of the request body arrived for {seconds} s")]
    BodyTimeout {
        /// The limit, in seconds.
        seconds: u64,
    },
    /// The client address has reached its limit of open requests.
    #[error("this client address has reached its limit of open requests; wait for one to end")]
    ClientBusy,
    /// The gateway has reached its limit of requests, open files or memory.
    #[error("the gateway is at its limit of requests, open files or memory; retry shortly")]
    Overloaded,
    /// The gateway cannot open a connection to a backend for lack of file descriptors or ports.
    #[error(
        "the gateway has no file descriptor or port left for a connection to a backend; the \
         backends are not at fault; its operator can raise the limit of open files (LimitNOFILE, \
         ulimit -n); retry shortly"
    )]
    Exhausted,
    /// The memory limit of all request bodies is reached.
    #[error(
        "the request bodies in the gateway take as much memory as limits.body_memory allows; retry \
         shortly"
    )]
    BodyMemory,
    /// No backend serves the model.
    #[error("the model `{model}` does not exist; available models: {known}")]
    UnknownModel {
        /// The name that the client sent.
        model: String,
        /// The models that the client may use.
        known: String,
    },
    /// No backend of the model is available.
    #[error("no backend of the model is available now; retry shortly")]
    NoBackend,
    /// Every backend is saturated, and the admission queue is full.
    #[error("all backends are full, and so is the admission queue; retry after {retry_after} s")]
    Saturated {
        /// Time until a retry can succeed, in seconds.
        retry_after: u32,
    },
    /// The request waited and was displaced by one of a higher class or of a smaller tenant.
    #[error(
        "all backends are full, and a request with precedence displaced this one in the admission \
         queue; retry after {retry_after} s"
    )]
    Shed {
        /// Time until a retry can succeed, in seconds.
        retry_after: u32,
    },
    /// No backend had capacity within the longest wait.
    #[error("no backend had capacity within {waited:?}; retry after {retry_after} s")]
    QueueTimeout {
        /// The longest wait.
        waited: Duration,
        /// Time until a retry can succeed, in seconds.
        retry_after: u32,
    },
    /// The backend closed the connection before it answered.
    #[error("the backend closed the connection before it answered")]
    Closed,
    /// The backend sent invalid HTTP.
    #[error("the backend did not answer in valid HTTP")]
    Garbage,
    /// The response head did not arrive in time.
    #[error("the backend sent no response head within {seconds} s")]
    ResponseHeadTimeout {
        /// The limit, in seconds.
        seconds: u64,
    },
    /// No output arrived in time.
    #[error("the response of the backend had no output within {limit:?}")]
    FirstOutputTimeout {
        /// The limit.
        limit: Duration,
    },
    /// Backends crashed while they processed the request.
    #[error("backends crashed while they processed this request; the gateway does not retry it")]
    Poison,
    /// A defect of the gateway.
    #[error("the gateway failed to process this request; its log has the cause")]
    Internal,
}

/// The kinds of limits of a tenant or an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateLimitKind {
    /// Requests per minute.
    Requests,
    /// Tokens per minute.
    Tokens,
    /// Open requests at the same time.
    Concurrency,
}

impl fmt::Display for RateLimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requests => "requests per minute",
            Self::Tokens => "tokens per minute",
            Self::Concurrency => "concurrent requests",
        })
    }
}

/// A list of names for an error message, each in backticks: the first 20, and the number of further
/// names.
pub fn listed(names: impl ExactSizeIterator<Item: fmt::Display>) -> String {
    let more = names.len().saturating_sub(MAX_LISTED_NAMES);
    let shown: Vec<String> = names.take(MAX_LISTED_NAMES).map(|name| format!("`{name}`")).collect();
    let shown = shown.join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// A model name for an error message: at most its first 100 characters.
pub fn truncate_model_name(model: &str) -> String {
    model.chars().take(MAX_MODEL_NAME_CHARS).collect()
}

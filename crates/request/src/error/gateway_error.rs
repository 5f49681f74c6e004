//! The errors of the gateway and their messages.

use std::fmt;
use std::time::Duration;
use tokenweir_protocol::named_enum;
use tokenweir_protocol::openai::request_fields::RequestBodyError;

/// Maximum length of a model name in an error message, in characters.
const MAX_MODEL_NAME_CHARS: usize = 100;
/// Maximum number of names that an error message lists.
const MAX_LISTED_NAMES: usize = 20;

/// The reason why the gateway answered a request with an error of its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// The gateway does not serve the path.
    #[error("the path `{path}` does not exist; {}", path_hint(.nearest.as_deref()))]
    NotFound {
        /// The path that the client sent.
        path: String,
        /// The served path that the client probably meant. `None`: no served path is similar.
        nearest: Option<&'static str>,
    },
    /// The client asks for a WebSocket or another protocol on a path that does not offer it.
    #[error("this path offers no upgrade to another protocol: send a {allow} request over HTTP")]
    UpgradeNotOffered {
        /// The method that the path accepts, for `Allow`.
        allow: &'static str,
    },
    /// The gateway serves the path with another method only.
    #[error("this path allows the method {allow} only")]
    MethodNotAllowed {
        /// The method that the path accepts, for `Allow`.
        allow: &'static str,
    },
    /// The path serves WebSocket only, and the request is no valid opening handshake.
    #[error(
        "this path serves WebSocket only: send a GET request over HTTP/1.1 with `upgrade: websocket`, \
         `sec-websocket-version: 13` and a `sec-websocket-key`"
    )]
    WebSocketRequired,
    /// The stored response does not exist, or the gateway cannot know that it belongs to the tenant.
    #[error("this gateway knows no stored response `{id}` of this client")]
    ResponseNotFound {
        /// The id that the client sent.
        id: String,
    },
    /// The body is not one valid JSON object or form.
    #[error("{0}")]
    BadBody(#[from] RequestBodyError),
    /// The head of the request is not valid HTTP.
    #[error("the request is not valid HTTP, or is ambiguous, so that servers parse it differently")]
    BadHead,
    /// The head of the request exceeds 64 KiB or 100 headers.
    #[error("the request headers are longer or more numerous than this gateway allows")]
    HeadTooLarge,
    /// The target of the request is too long.
    #[error("the request path is longer than this gateway allows")]
    UriTooLong,
    /// The gateway would have to rename the model in the body. But a header has a digest of the body, which
    /// would no longer match.
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
    /// The gateway would have to change a field of the body. But a header has a digest of the body, which would
    /// no longer match.
    #[error(
        "the gateway must change `{field}` in the body for the backend, but a header has a digest \
         of the body; leave that header out"
    )]
    SignedField {
        /// The field that would have to change.
        field: &'static str,
    },
    /// The body has an engine-control field that the client has no permission to use.
    #[error(
        "`{field}` controls the engine, and this client has no permission for it; leave it out, or \
         ask the operator of this gateway for the permission `{permission}`"
    )]
    EngineControl {
        /// The engine-control field.
        field: &'static str,
        /// The permission to use the field.
        permission: &'static str,
    },
    /// The request asks for more than the caps of the tenant or of the model allow.
    #[error("`{field}` {problem}")]
    RequestCap {
        /// The field that exceeds a cap.
        field: &'static str,
        /// The problem, as text that follows the name of the field.
        problem: String,
    },
    /// The gateway does not decode the `Content-Encoding` of the body, or the body is damaged.
    #[error(
        "the request body cannot be decoded from `{encoding}`; send it with one Content-Encoding (gzip, deflate or zstd) and no digest, or without"
    )]
    EncodedBody {
        /// The unsupported `Content-Encoding`.
        encoding: String,
    },
    /// The body exceeds `limits.body`.
    #[error("the request body is longer than {limit} bytes, the limit of this gateway")]
    BodyTooLarge {
        /// The value of `limits.body`, in bytes.
        limit: usize,
    },
    /// The body ended before its declared length.
    #[error("the request body ended before its declared length")]
    IncompleteBody,
    /// The gateway requires an API key, and the request has no valid one.
    #[error(
        "the API key is missing or unknown to this gateway; send it as `Authorization: Bearer KEY`"
    )]
    InvalidApiKey,
    /// The token of the request is not valid. The client does not get the reason, which would help to forge a
    /// token.
    #[error(
        "the token is not valid: it has expired, is not for this gateway, or its issuer is unknown; get a new one"
    )]
    InvalidToken,
    /// The gateway has never been able to read the keys of the issuer, so it cannot check the token.
    #[error("the gateway does not have the keys of the issuer of the token yet; retry shortly")]
    NoIssuerKeys,
    /// The gateway has just started and does not know how much of a limit other gateways have used.
    #[error(
        "the gateway has just started and does not know yet how much of your limits is used; retry shortly"
    )]
    UsageUnknown,
    /// The tenant may not use the model.
    #[error("this API key may not use {model}; GET /v1/models lists the models that it may use")]
    ModelNotAllowed {
        /// The name that the client sent, in backticks, or a text for a request without a model.
        model: String,
    },
    /// An option refuses the request.
    #[error("{}", .0.message)]
    Option(&'static OptionError),
    /// A limit of the tenant or of the API key is reached.
    #[error("the limit of {allowed} {} is reached; retry after {retry_after} s", .limited.as_str())]
    RateLimited {
        /// The kind of limit that the client has reached.
        limited: RateLimitKind,
        /// The limit: requests or tokens per minute, day or month, or open requests.
        allowed: u64,
        /// Time until a retry can succeed, in seconds.
        retry_after: u32,
    },
    /// The client sent no byte of the request body for too long, or sent the body too slowly.
    #[error(
        "the client sent no byte of the request body for {seconds} s, or sent the body too slowly"
    )]
    BodyTimeout {
        /// The timeout that has passed, in seconds.
        seconds: u64,
    },
    /// The IP address of the client has reached its limit of open requests.
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
    /// The memory of all request bodies in the gateway has reached `limits.body_memory`.
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
        /// List of the models that the client may use, as text.
        known: String,
    },
    /// No backend that serves the model is available.
    #[error("no backend of the model is available now; retry shortly")]
    NoBackend,
    /// The request has passed this gateway before.
    #[error(
        "the request came back to this gateway through one of its backends; the operator must remove \
         this gateway from its own backends"
    )]
    Loop,
    /// No backend has capacity for the request, and the admission queue is full.
    #[error("all backends are full, and so is the admission queue; retry after {retry_after} s")]
    Saturated {
        /// Time until a retry can succeed, in seconds.
        retry_after: u32,
    },
    /// The request waited in the admission queue and was displaced by a request of a higher class,
    /// or of a tenant with fewer requests in the queue.
    #[error(
        "all backends are full, and a request with precedence displaced this one in the admission \
         queue; retry after {retry_after} s"
    )]
    Shed {
        /// Time until a retry can succeed, in seconds.
        retry_after: u32,
    },
    /// The request waited in the admission queue for the maximum time.
    #[error("no backend had capacity within {waited:?}; retry after {retry_after} s")]
    QueueTimeout {
        /// The maximum time in the admission queue.
        waited: Duration,
        /// Time until a retry can succeed, in seconds.
        retry_after: u32,
    },
    /// Every backend is full, and the first output would be later than the TTFT objective allows.
    #[error(
        "all backends are full: the first output would come later than the objective of \
         {objective:?}; retry after {retry_after} s"
    )]
    Late {
        /// The limit of the TTFT.
        objective: Duration,
        /// Time until a retry can succeed, in seconds.
        retry_after: u32,
    },
    /// The backend closed the connection before it sent a response.
    #[error("the backend closed the connection before it sent a response")]
    Closed,
    /// The backend sent invalid HTTP.
    #[error("the backend did not answer in valid HTTP")]
    Garbage,
    /// The backend sent no response head before the timeout.
    #[error("the backend sent no response head within {seconds} s")]
    ResponseHeadTimeout {
        /// The timeout that has passed, in seconds.
        seconds: u64,
    },
    /// The response of the backend had no output before the timeout.
    #[error("the response of the backend had no output within {limit:?}")]
    FirstOutputTimeout {
        /// The timeout that has passed.
        limit: Duration,
    },
    /// For the timeout that the client announced, no byte was transferred.
    #[error("no byte was exchanged for {limit:?}, the timeout that the client announced")]
    ClientTimeout {
        /// The timeout that has passed.
        limit: Duration,
    },
    /// The response did not end before the total timeout of the request.
    #[error("the request took longer than {limit:?}, the limit of this gateway")]
    TotalTimeout {
        /// The timeout that has passed.
        limit: Duration,
    },
    /// Backends crashed while they processed the request, so it is not sent to further backends.
    #[error("backends crashed while they processed this request; the gateway does not retry it")]
    Poison,
    /// The gateway failed because of a defect in itself.
    #[error("the gateway failed to process this request; its log has the cause")]
    Internal,
}

/// Why an option refuses a request.
#[derive(Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The reason, which has a row in the table of errors.
    pub reason: &'static str,
    /// The message for the client.
    pub message: &'static str,
    /// The status, which can differ from that of the row.
    pub status: u16,
    /// The value of `Retry-After`, in seconds. `None`: the response has no such header.
    pub retry_after: Option<u32>,
}

named_enum! {
    /// The kinds of limits of a tenant or an API key.
    pub enum RateLimitKind {
        /// The limit of requests in one minute.
        Requests = "requests per minute",
        /// The limit of tokens in one minute.
        Tokens = "tokens per minute",
        /// The limit of requests in one calendar day.
        RequestsPerDay = "requests per day",
        /// The limit of tokens in one calendar day.
        TokensPerDay = "tokens per day",
        /// The limit of requests in one calendar month.
        RequestsPerMonth = "requests per month",
        /// The limit of tokens in one calendar month.
        TokensPerMonth = "tokens per month",
        /// Open requests at the same time.
        Concurrency = "concurrent requests",
    }
}

/// The hint in the error about an unknown path: the nearest served path, or what the gateway serves.
fn path_hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(
        || "the gateway serves inference APIs only".to_owned(),
        |nearest| format!("did you mean `{nearest}`? A client adds the path to its base URL, which usually ends in `/v1`"),
    )
}

/// A list of names for an error message, each in backticks: the first 20, and the number of further
/// names.
pub fn listed(names: impl ExactSizeIterator<Item: fmt::Display>) -> String {
    let omitted_count = names.len().saturating_sub(MAX_LISTED_NAMES);
    let listed: Vec<String> = names
        .take(MAX_LISTED_NAMES)
        .map(|name| format!("`{name}`"))
        .collect();
    let listed = listed.join(", ");
    if omitted_count == 0 {
        listed
    } else {
        format!("{listed} and {omitted_count} more")
    }
}

/// A model name for an error message: at most its first 100 characters.
pub fn truncate_model_name(model: &str) -> String {
    model.chars().take(MAX_MODEL_NAME_CHARS).collect()
}

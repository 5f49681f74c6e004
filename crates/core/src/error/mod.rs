//! Why the gateway answers instead of a replica: one variant for each answer, and one table that
//! says whose fault it is, which status it has and what the client should do.

mod envelope;
mod table;

use crate::headers::{X_GATEWAY_ERROR, X_SHOULD_RETRY};
use crate::openai::request::PeekError;
use crate::record::Outcome;
use bytes::Bytes;
pub use envelope::Envelope;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use std::fmt;
use std::time::Duration;
pub use table::REASONS;

/// Most names in a list.
const MAX_LISTED: usize = 20;

/// Why a request was not answered by a replica.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such path.
    #[error("there is no `{path}` here; the gateway serves inference only")]
    NotFound {
        /// As the client sent it.
        path: String,
    },
    /// The path has another method.
    #[error("this path takes {allow} only")]
    MethodNotAllowed {
        /// The method that it has.
        allow: &'static str,
    },
    /// The body cannot be understood.
    #[error("{0}")]
    BadBody(#[from] PeekError),
    /// The head of the request is not valid HTTP.
    #[error("the request is not valid HTTP, or others might read it in another way")]
    BadHead,
    /// The head of the request is too long.
    #[error("the request headers are longer or more than this gateway takes")]
    HeadTooLarge,
    /// The path of the request is too long.
    #[error("the request path is longer than this gateway takes")]
    UriTooLong,
    /// The name of the model is to be changed, and a header has a digest of the body.
    #[error(
        "`{model}` is this gateway's name for a model: the body must be changed for the replica, \
         but a header has its digest; ask for `{served_as}`"
    )]
    SignedBody {
        /// As the client wrote it.
        model: String,
        /// As the replicas call it.
        served_as: String,
    },
    /// A field of the body is to be changed, and a header has a digest of the body.
    #[error(
        "the gateway must change `{field}` in the body for the backend, but a header has a digest of \
         the body; leave that header out"
    )]
    SignedField {
        /// Its name.
        field: &'static str,
    },
    /// The body uses a field that controls the engine.
    #[error(
        "`{field}` controls the engine and is not for this client; leave it out, or ask the operator \
         of this gateway for the permission `{permission}`"
    )]
    EngineControl {
        /// Its name.
        field: &'static str,
        /// The permission that lets it pass.
        permission: &'static str,
    },
    /// The body is encoded.
    #[error("the request body is `{encoding}`; send it without a Content-Encoding")]
    EncodedBody {
        /// The encoding.
        encoding: String,
    },
    /// The body is too long.
    #[error("the request body is longer than {limit} bytes, the limit of this gateway")]
    BodyTooLarge {
        /// In bytes.
        limit: usize,
    },
    /// The client stopped sending.
    #[error("the request body ended before its length")]
    BodyCut,
    /// The gateway has keys, and this request has none of them.
    #[error(
        "the API key is missing, or it is not one of this gateway's; send it as `Authorization: \
         Bearer KEY`"
    )]
    InvalidApiKey,
    /// Its tenant may not use the model.
    #[error("this API key may not use {model}; GET /v1/models lists what it may use")]
    ModelNotAllowed {
        /// As the client wrote it, in backticks; or that it named none.
        model: String,
    },
    /// Its tenant or its key has taken as much as it may.
    #[error("the limit of {allowed} {limited} is reached; retry after {retry_after} s")]
    RateLimited {
        /// What there was too much of.
        limited: Limited,
        /// How much is allowed.
        allowed: u32,
        /// In seconds.
        retry_after: u32,
    },
    /// The client paused for too long in the middle of a body.
    #[error("nothing of the request body came for {seconds} s")]
    BodyTimeout {
        /// The limit.
        seconds: u64,
    },
    /// The client has as many requests open as one may.
    #[error("this client has as many requests open as one may have; wait for one to end")]
    ClientBusy,
    /// The gateway has as much to do as it can.
    #[error("the gateway has as much to do as it can; retry shortly")]
    Overloaded,
    /// The gateway cannot open connections.
    #[error(
        "the gateway has no open file or port left for a connection to a backend; the backends are \
         not at fault, and its operator can raise its limit of open files (LimitNOFILE, ulimit -n); \
         retry shortly"
    )]
    Exhausted,
    /// The bodies of all requests take as much memory as they may.
    #[error(
        "the bodies of the requests that the gateway holds take as much memory as they may \
         (limits.body_memory); retry shortly"
    )]
    BodyMemory,
    /// No replica serves the model.
    #[error("the model `{model}` does not exist. Models here: {known}")]
    UnknownModel {
        /// As the client wrote it.
        model: String,
        /// The models that there are.
        known: String,
    },
    /// No replica is healthy.
    #[error("no replica can take the request now; retry shortly")]
    NoBackend,
    /// Every replica is past its high-water mark, and so is the room to wait in.
    #[error("every replica is full, and so is the waiting room; retry after {retry_after} s")]
    Saturated {
        /// In seconds.
        retry_after: u32,
    },
    /// A request that waited made room for one of a higher class, or of a tenant with fewer.
    #[error(
        "every replica is full, and a request that goes first took this one's place in the waiting room; retry after {retry_after} s"
    )]
    Shed {
        /// In seconds.
        retry_after: u32,
    },
    /// No replica had room while the request could wait.
    #[error("no replica had room within {waited:?}; retry after {retry_after} s")]
    QueueTimeout {
        /// The longest wait.
        waited: Duration,
        /// In seconds.
        retry_after: u32,
    },
    /// The replica closed the connection before it answered.
    #[error("the replica closed the connection before it answered")]
    Closed,
    /// The replica did not send valid HTTP.
    #[error("the replica did not answer in HTTP")]
    Garbage,
    /// The replica's headers did not come in time.
    #[error("the replica did not answer within {seconds} s")]
    HeaderTimeout {
        /// The limit.
        seconds: u64,
    },
    /// No output came in time.
    #[error("the replica's answer had no output within {limit:?}")]
    FirstOutputTimeout {
        /// The limit.
        limit: Duration,
    },
    /// Replicas died while they had the request.
    #[error("replicas failed while they had this request, so it is not sent to another one")]
    Poison,
    /// A defect of the gateway.
    #[error("the gateway failed on this request; its log has the cause")]
    Internal,
}

/// What a tenant or a key may take so much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    /// Requests that begin in a minute.
    Requests,
    /// Tokens in a minute.
    Tokens,
    /// Requests that are open at once.
    Concurrency,
}

/// Those that say that there were replicas and no room.
pub const SHED_REASONS: &[&str] = &["saturated", "shed", "queue_timeout"];

/// Who has to change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request cannot succeed as it is.
    Client,
    /// A replica failed.
    Backend,
    /// The gateway has no capacity, or a defect.
    Gateway,
}

// === impl Limited, Error ===

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requests => "requests in a minute",
            Self::Tokens => "tokens in a minute",
            Self::Concurrency => "requests at once",
        })
    }
}

impl Error {
    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.row().status
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        self.row().fault
    }

    /// One word for metrics, spans and the `x-gateway-error` header: a closed set.
    pub fn reason(&self) -> &'static str {
        self.row().reason
    }

    /// How the request ended, for its record.
    pub fn outcome(&self) -> Outcome {
        match (self, self.fault()) {
            (Self::HeaderTimeout { .. } | Self::FirstOutputTimeout { .. }, _) => Outcome::Timeout,
            // Nobody is there to read the answer.
            (Self::BodyCut, _) => Outcome::Cancelled,
            (_, Fault::Client) => Outcome::ClientError,
            (_, Fault::Backend) => Outcome::UpstreamError,
            (_, Fault::Gateway) => Outcome::Rejected,
        }
    }

    /// The answer, in the error envelope that OpenAI's clients read.
    pub fn response(&self) -> Response<Full<Bytes>> {
        self.response_in(Envelope::OpenAi, None)
    }

    /// The answer in an error envelope. The request id stands in Anthropic's.
    pub fn response_in(
        &self,
        envelope: Envelope,
        request_id: Option<&str>,
    ) -> Response<Full<Bytes>> {
        let row = self.row();
        let body = envelope.body(&row, &self.to_string(), request_id);
        let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
        *response.status_mut() = row.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(X_GATEWAY_ERROR, HeaderValue::from_static(row.reason));
        if let Some(seconds) = row.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if *self == Self::Poison {
            headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if row.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Self::MethodNotAllowed { allow } = self {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

/// Names for people, each in backticks: the first 20, and how many more there are.
pub fn listed(names: impl ExactSizeIterator<Item: fmt::Display>) -> String {
    let more = names.len().saturating_sub(MAX_LISTED);
    let shown: Vec<String> = names.take(MAX_LISTED).map(|name| format!("`{name}`")).collect();
    let shown = shown.join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

#[cfg(test)]
mod tests;

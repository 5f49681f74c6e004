//! Sends one canary request and judges its answer.

use http::{HeaderValue, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use std::time::Duration;
use tokenweir_engine::engine_metrics::ScrapeError;
use tokenweir_gateway::backend::Backend;
use tokenweir_net::client::HttpClient;
use tokenweir_net::page_fetcher::{FetchError, PageFetcher, PagePost};
use tokenweir_protocol::named_enum;

/// The request path. All engines that generate text serve it.
const PATH: &str = "/v1/completions";
/// The prompt. It is a constant, so that no canary request contains text of a client.
const PROMPT: &str = "1";
/// Maximum size of an answer in bytes. The answer has one token.
const MAX_ANSWER_BYTES: usize = 64 << 10;

named_enum! {
    #[derive(PartialOrd, Ord)]
    pub(crate) enum CanaryResult {
        /// The backend generated a token.
        Answered = "answered",
        /// The answer has the status 200, but no choice.
        NoOutput = "no_output",
        /// The answer has a status other than 200.
        Refused = "refused",
        /// The timeout expired before the whole answer arrived.
        Timeout = "timeout",
        /// The connection failed, or the answer is not valid HTTP.
        Failed = "failed",
    }
}

/// The answer to a canary request, without the generated text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CanaryAnswer {
    pub(crate) result: CanaryResult,
    /// The kind of the error, such as `connect` or `status 503`. `None`: no error, or the result already names
    /// it.
    pub(crate) error: Option<String>,
}

/// The part of the JSON answer that the gateway reads.
#[derive(Deserialize)]
struct Completion {
    choices: Vec<IgnoredAny>,
}

impl CanaryAnswer {
    fn new(result: CanaryResult, error: Option<String>) -> Self {
        Self { result, error }
    }

    fn of(answer: Result<(StatusCode, &[u8]), FetchError>) -> Option<Self> {
        match answer {
            // If no socket is left for a connection, no request was sent, so there is no result.
            Err(FetchError::Exhausted(_)) => None,
            Err(FetchError::Timeout { .. }) => Some(Self::new(CanaryResult::Timeout, None)),
            Err(error) => {
                let kind = ScrapeError::from(error).as_str().to_owned();
                Some(Self::new(CanaryResult::Failed, Some(kind)))
            }
            Ok((StatusCode::OK, body)) if has_choice(body) => {
                Some(Self::new(CanaryResult::Answered, None))
            }
            Ok((StatusCode::OK, _)) => Some(Self::new(CanaryResult::NoOutput, None)),
            Ok((status, _)) => {
                let kind = format!("status {}", status.as_u16());
                Some(Self::new(CanaryResult::Refused, Some(kind)))
            }
        }
    }
}

/// Sends a canary request over a connection that client requests do not use. `None`: nothing was sent, because
/// no model of the backend is known, or the gateway has no socket left.
pub(crate) async fn ask(
    backend: &Backend,
    client: &HttpClient,
    timeout: Duration,
) -> Option<CanaryAnswer> {
    let state = backend.health.state();
    let model = state
        .models()
        .iter()
        .find(|model| model.parent.is_none())?
        .id
        .clone();
    let body = json!({
        "model": &*model,
        "prompt": PROMPT,
        "max_tokens": 1,
        "temperature": 0,
        "stream": false,
    });
    let post = PagePost {
        body: body.to_string().into(),
        header: None,
    };
    let identity = &backend.identity;
    let key = identity.authorization.as_ref();
    let address = identity.address.clone();
    let fetcher = PageFetcher::new(client.clone(), address, key, timeout, MAX_ANSWER_BYTES);
    let mut fetcher = fetcher.accepting(HeaderValue::from_static("application/json"));
    CanaryAnswer::of(fetcher.post(PATH, &post).await)
}

/// Whether the body is a completion with output. The text of the output does not matter, and may be empty.
fn has_choice(body: &[u8]) -> bool {
    serde_json::from_slice::<Completion>(body).is_ok_and(|it| !it.choices.is_empty())
}

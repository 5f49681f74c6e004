//! One canary request: what is sent, and how the answer is judged.

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

/// The path that all engines serve which generate text.
const PATH: &str = "/v1/completions";
/// The prompt. It is fixed, so that no text of a client is in a canary request.
const PROMPT: &str = "1";
/// Maximum size of an answer in bytes. The answer has one token.
const MAX_ANSWER_BYTES: usize = 64 << 10;

named_enum! {
    #[derive(PartialOrd, Ord)]
    pub(crate) enum CanaryResult {
        /// The backend generated a token.
        Answered = "answered",
        /// The answer has the status 200 and no output.
        NoOutput = "no_output",
        /// The answer has another status.
        Refused = "refused",
        /// There was no whole answer before the timeout.
        Timeout = "timeout",
        /// The connection failed, or the answer is no valid HTTP.
        Failed = "failed",
    }
}

/// The answer to a canary request. It has nothing of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CanaryAnswer {
    pub(crate) result: CanaryResult,
    /// The kind of the error, such as `connect` or `status 503`. `None`: none, or the result states it.
    pub(crate) error: Option<String>,
}

/// The part of an answer that is read.
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
            // Without a connection of its own, the gateway has not asked.
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

/// Sends a canary request, which does not use the connections of clients' requests. `None`: nothing was sent,
/// because no model of the backend is known, or the gateway has no socket left.
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

//! Refreshes the model list and the server version of a backend. A part of the health checker.

use crate::backend::Backend;
use crate::backend::pool::BackendPool;
use http::StatusCode;
use memchr::memmem;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_engine::model::ModelList;
use tokenweir_net::page_fetcher::{FetchError, PageFetcher};
use tokenweir_protocol::clock;

/// Time between two requests for the model list and the version of a backend.
const MODELS_REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum time between two requests for the model list and the version after a backend rejected a model of its
/// list.
pub(super) const STALE_MODELS_REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two requests for the model list while they fail.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of the stored version, in characters. A longer version is truncated, because the
/// backend chooses the text.
const MAX_VERSION_CHARS: usize = 100;

/// The state of the refresh of the model list and the version of one backend.
#[derive(Debug, Default)]
pub(super) struct ModelListRefresh {
    /// Time of the last successful request for the model list. `None`: no list yet, or [`Self::expire`] made
    /// the next refresh due at once.
    fetched_at: Option<Instant>,
    /// Time of the last request for the model list, if that request failed. The next request waits for
    /// [`RETRY_INTERVAL`].
    failed_at: Option<Instant>,
    /// The status of the last response to a request for the model list. `None`: no response arrived.
    status: Option<StatusCode>,
    /// The last logged problem with the model list. `None`: the last list had no problem. The next problem is
    /// then logged even if it occurred before.
    problem: Option<ModelListProblem>,
}

/// Why some or all models of a backend are not known.
#[derive(Debug, PartialEq, Eq)]
struct ModelListProblem {
    /// The description of the problem, such as an error status of `/v1/models`.
    text: String,
    /// The remedy for an operator.
    help: &'static str,
}

impl ModelListRefresh {
    /// Requests the model list and the version of a backend if the refresh interval is over. Passes
    /// the models to the pool, and stores the version in the state of the backend.
    pub(super) async fn refresh(
        &mut self,
        pool: &BackendPool,
        backend: &Backend,
        fetcher: &mut PageFetcher,
    ) {
        let now = clock::now();
        let interval = refresh_interval(backend, pool.backend_count());
        let is_due = |at: Instant| now.saturating_duration_since(at) >= interval;
        let may_retry = |at: Instant| now.saturating_duration_since(at) >= RETRY_INTERVAL;
        if !(self.fetched_at.is_none_or(is_due) && self.failed_at.is_none_or(may_retry)) {
            return;
        }
        let response = fetcher.get("/v1/models").await;
        self.status = response.as_ref().ok().map(|(status, _)| *status);
        // Only another gateway writes model states into its model list.
        let has_states = |body: &[u8]| memmem::find(body, b"\"model_states\":").is_some();
        let (model_list, is_gateway) = match &response {
            Ok((StatusCode::OK, body)) => (ModelList::read(body), has_states(body)),
            // The gateway lacked a file descriptor or port, so the backend is not at fault.
            Err(FetchError::Exhausted(_)) => return,
            _ => (None, false),
        };
        let has_key = backend.identity.authorization.is_some();
        let mut problem = model_list
            .is_none()
            .then(|| ModelListProblem::of_response(&response, has_key));
        let version = match fetcher.get("/version").await {
            Ok((StatusCode::OK, body)) => parse_version(body),
            _ => None,
        };
        self.failed_at = model_list.is_none().then(clock::now);
        if let Some(ModelList {
            models,
            excess_models,
            too_long,
        }) = model_list
        {
            self.fetched_at = Some(clock::now());
            pool.set_models(backend, &models);
            let excess = excess_models + too_long;
            problem = (excess > 0).then(|| ModelListProblem::of_excess(excess));
        }
        self.report(backend, problem);
        backend.update_state(|state| {
            state.version = version.clone().or(state.version.take());
            state.is_gateway = is_gateway;
        });
        backend.health.set_models_read(now);
        pool.model_list_read.notify_waiters();
    }

    /// Whether the backend answered the last request for the model list with 503.
    pub(super) fn is_unavailable(&self) -> bool {
        self.status == Some(StatusCode::SERVICE_UNAVAILABLE)
    }

    /// Makes the next refresh of the model list due at once.
    pub(super) fn expire(&mut self) {
        (self.fetched_at, self.failed_at) = (None, None);
    }

    /// Stores a problem in the state of the backend, and logs it if it differs from the last one.
    fn report(&mut self, backend: &Backend, problem: Option<ModelListProblem>) {
        if self.problem == problem {
            return;
        }
        if let Some(ModelListProblem { text, help }) = &problem {
            let backend = &backend.identity.id;
            tracing::warn!(%backend, help, "model list of the backend is incomplete: {text}");
        }
        let join = |it: &ModelListProblem| format!("{}; {}", it.text, it.help).into();
        let text: Option<Arc<str>> = problem.as_ref().map(join);
        backend.update_state(|state| state.models_error.clone_from(&text));
        self.problem = problem;
    }
}

impl ModelListProblem {
    /// Describes a response of `/v1/models` that is no model list. `has_key`: whether the configuration sets an
    /// API key for the backend.
    fn of_response(response: &Result<(StatusCode, &[u8]), FetchError>, has_key: bool) -> Self {
        const UNREADABLE: &str = "until it is readable, models that the gateway does not know \
                                  otherwise are sent to this backend; `tokenweir doctor` checks it";
        let (text, help) = match response {
            Ok((StatusCode::OK, _)) => (
                "/v1/models answers no list of models".to_owned(),
                UNREADABLE,
            ),
            Ok((status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), _)) => {
                let help = if has_key {
                    "give the key that vLLM was started with (--api-key) as `api_key` of this backend"
                } else {
                    "set `api_key: { env: VLLM_API_KEY }` of this backend in the configuration"
                };
                let status = status.as_u16();
                (
                    format!("the backend requires a key: /v1/models answers {status}"),
                    help,
                )
            }
            Ok((status, _)) => (
                format!("/v1/models answers {}", status.as_u16()),
                UNREADABLE,
            ),
            Err(FetchError::TooLarge) => (
                "it is longer than scrape.max_page".to_owned(),
                "raise scrape.max_page, or configure the backend to list fewer models",
            ),
            Err(error) => (format!("/v1/models: {}", error.describe()), UNREADABLE),
        };
        Self { text, help }
    }

    /// Describes a model list with more models, or longer ids, than the gateway accepts. `models`: the number
    /// of models that are not served.
    fn of_excess(models: usize) -> Self {
        let most = ModelList::MOST;
        let bytes = ModelList::MAX_ID_BYTES;
        let text = format!(
            "{models} models are not served: a list has at most {most} models, and an id {bytes} bytes"
        );
        Self {
            text,
            help: "configure the backend to list fewer models, or shorter ids",
        }
    }
}

/// Time between two requests for the model list: 10 s. After the backend has rejected a model of its list, it is 10
/// ms for each of the `backends`, from 1 s to 10 s, so that up to 1,000 backends with old lists get at most 100
/// requests per second together.
fn refresh_interval(backend: &Backend, backends: usize) -> Duration {
    if !backend.health.is_model_list_stale.get() {
        return MODELS_REFRESH_INTERVAL;
    }
    let backends = u32::try_from(backends).unwrap_or(u32::MAX);
    let shared = Duration::from_millis(10).saturating_mul(backends);
    shared.clamp(STALE_MODELS_REFRESH_INTERVAL, MODELS_REFRESH_INTERVAL)
}

fn parse_version(body: &[u8]) -> Option<Arc<str>> {
    let version: serde_json::Value = serde_json::from_slice(body).ok()?;
    let version: String = version
        .get("version")?
        .as_str()?
        .chars()
        .take(MAX_VERSION_CHARS)
        .collect();
    Some(version.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_server_version_is_truncated() {
        assert_eq!(
            parse_version(br#"{"version":"0.32.0"}"#).as_deref(),
            Some("0.32.0")
        );
        let long = format!(r#"{{"version":"{}"}}"#, "9".repeat(1 << 20));
        let length = parse_version(long.as_bytes()).map(|version| version.len());
        assert_eq!(length, Some(MAX_VERSION_CHARS));
        assert_eq!(parse_version(b"{}"), None);
    }

    #[test]
    fn each_problem_states_response_and_remedy() {
        let status = |code| Ok((StatusCode::from_u16(code).unwrap(), &b"[]"[..]));
        for (response, has_key, seen, remedy) in [
            (
                status(401),
                false,
                "requires a key: /v1/models answers 401",
                "api_key",
            ),
            (
                status(403),
                true,
                "requires a key: /v1/models answers 403",
                "--api-key",
            ),
            (status(404), false, "/v1/models answers 404", "doctor"),
            (status(500), false, "/v1/models answers 500", "doctor"),
            (status(200), false, "no list of models", "doctor"),
            (
                Err(FetchError::Timeout {
                    has_connected: true,
                }),
                false,
                "timeout",
                "doctor",
            ),
            (
                Err(FetchError::TooLarge),
                false,
                "scrape.max_page",
                "raise scrape.max_page",
            ),
        ] {
            let problem = ModelListProblem::of_response(&response, has_key);
            assert!(problem.text.contains(seen), "{problem:?}");
            assert!(problem.help.contains(remedy), "{problem:?}");
        }
    }
}

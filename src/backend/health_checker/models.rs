//! Refreshes the model list and the server version of a backend, as a part of its health checker.

use crate::backend::Backend;
use crate::backend::pool::BackendPool;
use http::StatusCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::model::ModelList;
use tokenweir_net::page_fetcher::{FetchError, PageFetcher};

/// Time between two requests for the model list and the version of a backend.
const MODELS_REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two requests for the model list and the version after the backend rejected a model
/// that it had listed.
const STALE_MODELS_REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of the stored version, in characters. A longer version is truncated, because the
/// backend chooses the text.
const MAX_VERSION_CHARS: usize = 100;

/// The state of the refresh of the model list and the version of one backend.
#[derive(Debug, Default)]
pub(super) struct ModelListRefresh {
    /// Time of the last successful request for the model list. `None`: the next refresh is due at
    /// once.
    fetched_at: Option<Instant>,
    /// The problem at the last report to the log, so that a problem that persists is logged once.
    /// All false at first, and again after a model list without a problem: if the problem then
    /// returns, it is logged again.
    logged_problem: ModelListProblem,
}

/// The reasons why some models of a backend are not served. All false: there is no problem.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ModelListProblem {
    /// Whether the response is longer than `scrape.max_page`.
    is_response_too_large: bool,
    /// Whether the list has more models than the gateway accepts.
    has_too_many_models: bool,
    /// Whether the list has model ids that are longer than the gateway accepts.
    has_long_ids: bool,
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
        let (now, interval) = (clock::now(), refresh_interval(backend));
        let is_due = |at: Instant| now.saturating_duration_since(at) >= interval;
        if !self.fetched_at.is_none_or(is_due) {
            return;
        }
        let mut problem = ModelListProblem::default();
        let model_list = match fetcher.get("/v1/models").await {
            Ok((StatusCode::OK, body)) => ModelList::read(body),
            Err(FetchError::TooLarge) => {
                problem.is_response_too_large = true;
                None
            }
            _ => None,
        };
        let version = match fetcher.get("/version").await {
            Ok((StatusCode::OK, body)) => parse_version(body),
            _ => None,
        };
        if let Some(ModelList { models, excess_models, too_long }) = model_list {
            self.fetched_at = Some(clock::now());
            pool.set_models(backend, &models);
            problem.has_too_many_models = excess_models > 0;
            problem.has_long_ids = too_long > 0;
            self.log_problem(backend, problem, excess_models + too_long);
        } else if problem.is_response_too_large {
            self.log_problem(backend, problem, 0);
        }
        backend.update_state(|state| state.version = version.clone().or(state.version.take()));
    }

    /// Makes the next refresh due at once.
    pub(super) fn expire(&mut self) {
        self.fetched_at = None;
    }

    /// Logs a problem if it differs from the problem that was logged last.
    fn log_problem(&mut self, backend: &Backend, problem: ModelListProblem, excess_models: usize) {
        if std::mem::replace(&mut self.logged_problem, problem) == problem {
            return;
        }
        let backend = &backend.identity.id;
        if problem.is_response_too_large {
            tracing::warn!(
                %backend,
                help = "raise scrape.max_page, or configure the backend to list fewer models",
                "model list of the backend exceeds scrape.max_page: keeping the previous list"
            );
        } else if problem != ModelListProblem::default() {
            tracing::warn!(
                %backend,
                excess_models,
                most = ModelList::MOST,
                longest_id = ModelList::MAX_ID_BYTES,
                "backend lists too many models or too long model ids: not serving the excess models"
            );
        }
    }
}

fn refresh_interval(backend: &Backend) -> Duration {
    let is_stale = backend.health.is_model_list_stale();
    if is_stale { STALE_MODELS_REFRESH_INTERVAL } else { MODELS_REFRESH_INTERVAL }
}

fn parse_version(body: &[u8]) -> Option<Arc<str>> {
    let version: serde_json::Value = serde_json::from_slice(body).ok()?;
    let version: String =
        version.get("version")?.as_str()?.chars().take(MAX_VERSION_CHARS).collect();
    Some(version.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_version_is_truncated() {
        assert_eq!(parse_version(br#"{"version":"0.32.0"}"#).as_deref(), Some("0.32.0"));
        let long = format!(r#"{{"version":"{}"}}"#, "9".repeat(1 << 20));
        let length = parse_version(long.as_bytes()).map(|version| version.len());
        assert_eq!(length, Some(MAX_VERSION_CHARS));
        assert_eq!(parse_version(b"{}"), None);
    }
}

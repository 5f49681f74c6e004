//! The health checker's refresh of the model list and the version of a backend.

use super::HealthChecker;
use http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::model::ModelList;
use tokenweir_net::page_fetcher::FetchError;

/// Time between two requests for the models and the version.
const MODELS_REFRESH_INTERVAL: Duration = Duration::from_secs(10);
/// The same after the backend rejected a model that it had listed.
const STALE_MODELS_REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of the stored version, in characters. The backend chooses its length.
const MAX_VERSION_CHARS: usize = 100;

/// Why some models of a backend are not served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ModelListProblem {
    is_response_too_large: bool,
    has_too_many_models: bool,
    has_long_ids: bool,
}

impl HealthChecker {
    /// Requests the models and the version if the refresh interval is over.
    pub(super) async fn refresh_models(&mut self) {
        let (now, interval) = (clock::now(), self.models_refresh_interval());
        let is_due = |at: Instant| now.saturating_duration_since(at) >= interval;
        if !self.models_fetched_at.is_none_or(is_due) {
            return;
        }
        let mut problem = ModelListProblem::default();
        let listing = match self.fetcher.get("/v1/models").await {
            Ok((StatusCode::OK, body)) => ModelList::read(body),
            Err(FetchError::TooLarge) => {
                problem.is_response_too_large = true;
                None
            }
            _ => None,
        };
        let version = match self.fetcher.get("/version").await {
            Ok((StatusCode::OK, body)) => parse_version(body),
            _ => None,
        };
        if let Some(ModelList { models, excess_models, too_long }) = listing {
            self.models_fetched_at = Some(clock::now());
            self.pool.set_models(&self.backend, &models);
            problem.has_too_many_models = excess_models > 0;
            problem.has_long_ids = too_long > 0;
            self.log_models_problem(problem, excess_models + too_long);
        } else if problem.is_response_too_large {
            self.log_models_problem(problem, 0);
        }
        self.backend.update_state(|state| state.version = version.clone().or(state.version.take()));
    }

    fn models_refresh_interval(&self) -> Duration {
        let is_stale = self.backend.is_model_list_stale.load(Ordering::Relaxed);
        if is_stale { STALE_MODELS_REFRESH_INTERVAL } else { MODELS_REFRESH_INTERVAL }
    }

    /// Logs a problem if it differs from the last logged one.
    fn log_models_problem(&mut self, problem: ModelListProblem, left_out: usize) {
        if std::mem::replace(&mut self.logged_models_problem, problem) == problem {
            return;
        }
        let backend = &self.backend.id;
        if problem.is_response_too_large {
            tracing::warn!(
                %backend,
                help = "raise scrape.max_page, or configure the backend to list fewer models",
                "model list of the backend exceeds scrape.max_page: keeping the previous list"
            );
        } else if problem != ModelListProblem::default() {
            tracing::warn!(
                %backend,
                left_out,
                most = ModelList::MOST,
                longest_id = ModelList::MAX_ID_BYTES,
                "backend lists too many models or too long model ids: not serving the excess models"
            );
        }
    }
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

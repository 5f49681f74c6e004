//! What a watcher asks for seldom: the models of a backend and its version.

use super::Watcher;
use http::StatusCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokenweir_core::clock;
use tokenweir_core::model::Listing;
use tokenweir_net::fetch::Failure;

/// How often the models and the version are asked for again.
const MODELS_EVERY: Duration = Duration::from_secs(10);
/// How often they are, while a backend does not know models that it listed.
const DOUBTED_MODELS_EVERY: Duration = Duration::from_secs(1);
/// Longest version that is kept, in characters. A backend chooses it.
const MAX_VERSION: usize = 100;

/// Why some models of a backend are not served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Problem {
    is_page_too_long: bool,
    has_too_many: bool,
    has_long_ids: bool,
}

impl Watcher {
    /// Asks for its models and its version, if that is due.
    pub(super) async fn ask_models(&mut self) {
        let (now, every) = (clock::now(), self.models_every());
        let is_due = |at: Instant| now.saturating_duration_since(at) >= every;
        if !self.models_at.is_none_or(is_due) {
            return;
        }
        let mut problem = Problem::default();
        let listing = match self.fetcher.get("/v1/models").await {
            Ok((StatusCode::OK, body)) => Listing::read(body),
            Err(Failure::TooLarge) => {
                problem.is_page_too_long = true;
                None
            }
            _ => None,
        };
        let version = match self.fetcher.get("/version").await {
            Ok((StatusCode::OK, body)) => version(body),
            _ => None,
        };
        if let Some(Listing { models, too_many, too_long }) = listing {
            self.models_at = Some(clock::now());
            self.backend.serves(&models);
            problem.has_too_many = too_many > 0;
            problem.has_long_ids = too_long > 0;
            self.log_problem(problem, too_many + too_long);
        } else if problem.is_page_too_long {
            self.log_problem(problem, 0);
        }
        self.backend.update(|state| state.version = version.clone().or(state.version.take()));
    }

    fn models_every(&self) -> Duration {
        let is_doubted = self.backend.is_doubted.load(Ordering::Relaxed);
        if is_doubted { DOUBTED_MODELS_EVERY } else { MODELS_EVERY }
    }

    /// Logs a problem once, until it is another one.
    fn log_problem(&mut self, problem: Problem, left_out: usize) {
        if std::mem::replace(&mut self.models_problem, problem) == problem {
            return;
        }
        let backend = &self.backend.id;
        if problem.is_page_too_long {
            tracing::warn!(
                %backend,
                help = "raise watch.max_page, or have the backend list fewer models",
                "the list of models is too long to be read"
            );
        } else if problem != Problem::default() {
            tracing::warn!(
                %backend,
                left_out,
                most = Listing::MOST,
                longest_id = Listing::LONGEST_ID,
                "models are not served: the backend lists too many, or their ids are too long"
            );
        }
    }
}

fn version(body: &[u8]) -> Option<Arc<str>> {
    let version: serde_json::Value = serde_json::from_slice(body).ok()?;
    let version: String = version.get("version")?.as_str()?.chars().take(MAX_VERSION).collect();
    Some(version.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_of_any_length_is_cut() {
        assert_eq!(version(br#"{"version":"0.32.0"}"#).as_deref(), Some("0.32.0"));
        let long = format!(r#"{{"version":"{}"}}"#, "9".repeat(1 << 20));
        assert_eq!(version(long.as_bytes()).map(|it| it.len()), Some(MAX_VERSION));
        assert_eq!(version(b"{}"), None);
    }
}

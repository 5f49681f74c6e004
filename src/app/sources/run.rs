//! The task of one discovery source: asks its place for ever, and keeps what was found last.

use super::Found;
use crate::app::process::Chain;
use crate::config::{BackendConfig, Discovery, backends_in};
use crate::discovery::Source;
use crate::discovery::dns::{Dns, Question};
use crate::discovery::file::WatchedFile;
use crate::discovery::name::WatchedName;
use std::error::Error;
use std::future::{Future, ready};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The time from one attempt to find out whom to ask to the next.
const RETRY: Duration = Duration::from_secs(10);

pub(super) async fn run(settings: Discovery, found: Arc<Found>) {
    if let Some(file) = settings.file.clone() {
        return watch_file(file, &found).await;
    }
    #[cfg(feature = "kubernetes")]
    if let Some(pods) = &settings.kubernetes {
        let problem = "no API server: backends are not found by Kubernetes";
        let service = opened(problem, || super::kubernetes::watched(pods)).await;
        return watch(service, &found).await;
    }
    let question = match (&settings.dns, settings.port, &settings.srv) {
        (Some(name), Some(port), _) => Question::Host { name: name.clone(), port },
        (_, _, Some(name)) => Question::Service { name: name.clone() },
        // The configuration has checked that there is one.
        _ => return,
    };
    let problem = "no name server: backends are not found by name";
    let dns = opened(problem, || ready(Dns::of_system())).await;
    watch(WatchedName::new(dns, question, settings.every), &found).await;
}

/// Tries until it succeeds: a file of credentials or of name servers may be written later.
async fn opened<T, E: Error, F>(problem: &str, mut open: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
{
    let mut is_known = false;
    loop {
        match open().await {
            Ok(opened) => return opened,
            Err(error) if is_known => tracing::debug!(error = %Chain(&error), "{problem}"),
            Err(error) => tracing::error!(error = %Chain(&error), retry = ?RETRY, "{problem}"),
        }
        is_known = true;
        tokio::time::sleep(RETRY).await;
    }
}

async fn watch(mut place: impl Source, found: &Found) {
    loop {
        found.set(place.changed().await.into_iter().map(BackendConfig::at).collect());
    }
}

/// A file with a mistake changes nothing.
async fn watch_file(file: PathBuf, found: &Found) {
    let mut file = WatchedFile::new(file);
    loop {
        file.changed().await;
        match backends_in(file.path()) {
            Ok(backends) if backends.is_empty() => {
                tracing::warn!(file = %file.path().display(), "no replica; those known stay");
            }
            Ok(backends) => found.set(backends),
            Err(error) => {
                tracing::error!(%error, "the list of replicas cannot be used");
                if error.is_unreadable() {
                    file.forget();
                }
            }
        }
    }
}

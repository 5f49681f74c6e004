//! The sources of replicas that run, and what each of them has found last.

#[cfg(feature = "kubernetes")]
mod kubernetes;

use crate::config::{BackendConfig, Config, Discovery, backends_in};
use crate::discovery::Source;
use crate::discovery::dns::{Dns, Question};
use crate::discovery::file::WatchedFile;
use crate::discovery::name::WatchedName;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The sources. They end when this is dropped.
pub(super) struct Sources {
    /// By the position in the configuration. `None`: nothing yet.
    found: Vec<Option<Vec<BackendConfig>>>,
    news: mpsc::Receiver<News>,
    _running: JoinSet<()>,
}

/// Which source has found what.
type News = (usize, Vec<BackendConfig>);

/// Lists that wait to be taken.
const WAITING: usize = 16;

// === impl Sources ===

impl Sources {
    /// Starts them. Must be called inside a runtime.
    pub(super) fn start(configured: &[Discovery]) -> Self {
        let (sender, news) = mpsc::channel(WAITING);
        let mut running = JoinSet::new();
        for (index, source) in configured.iter().enumerate() {
            running.spawn(run(index, source.clone(), sender.clone()));
        }
        Self { found: vec![None; configured.len()], news, _running: running }
    }

    /// Waits until each has found something, or `patience` is over.
    pub(super) async fn first(&mut self, patience: Duration) {
        let all = async {
            while self.found.iter().any(Option::is_none) {
                self.changed().await;
            }
        };
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// Waits until one has found something new.
    pub(super) async fn changed(&mut self) {
        match self.news.recv().await {
            Some((index, found)) => self.found[index] = Some(found),
            // There is no source.
            None => std::future::pending().await,
        }
    }

    /// All replicas: those of the configuration, and those that were found. What is told twice
    /// counts as it was told first.
    pub(super) fn replicas(&self, config: &Config) -> Vec<BackendConfig> {
        let mut replicas = config.backends.clone();
        for found in self.found.iter().flatten().flatten() {
            let is_same =
                |other: &BackendConfig| other.url == found.url || other.id() == found.id();
            if !replicas.iter().any(is_same) {
                replicas.push(found.clone());
            }
        }
        replicas
    }
}

async fn run(index: usize, source: Discovery, news: mpsc::Sender<News>) {
    if let Some(file) = source.file.clone() {
        return watch_file(index, &source, file, news).await;
    }
    #[cfg(feature = "kubernetes")]
    if let Some(pods) = &source.kubernetes {
        return match kubernetes::watched(pods).await {
            Ok(service) => watch(index, &source, service, news).await,
            Err(error) => {
                let error = super::Chain(&error);
                tracing::error!(%error, "no API server: replicas are not found by Kubernetes");
            }
        };
    }
    let question = match (&source.dns, source.port, &source.srv) {
        (Some(name), Some(port), _) => Question::Host { name: name.clone(), port },
        (_, _, Some(name)) => Question::Service { name: name.clone() },
        // The configuration has checked that there is one.
        _ => return,
    };
    match Dns::of_system() {
        Ok(dns) => {
            let name = WatchedName::new(dns, question, source.every);
            watch(index, &source, name, news).await;
        }
        Err(error) => tracing::error!(%error, "no name server: replicas are not found by name"),
    }
}

async fn watch(index: usize, source: &Discovery, mut place: impl Source, news: mpsc::Sender<News>) {
    loop {
        let found = place.changed().await.into_iter();
        let found = found.map(|url| source.complete(BackendConfig::at(url))).collect();
        if news.send((index, found)).await.is_err() {
            return;
        }
    }
}

/// A file with a mistake changes nothing.
async fn watch_file(index: usize, source: &Discovery, file: PathBuf, news: mpsc::Sender<News>) {
    let mut file = WatchedFile::new(file);
    loop {
        file.changed().await;
        match backends_in(file.path()) {
            Ok(found) if found.is_empty() => {
                tracing::warn!(file = %file.path().display(), "no replica; those known stay");
            }
            Ok(found) => {
                let found = found.into_iter().map(|backend| source.complete(backend)).collect();
                if news.send((index, found)).await.is_err() {
                    return;
                }
            }
            Err(error) => tracing::error!(%error, "the list of replicas cannot be used"),
        }
    }
}

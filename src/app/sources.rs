//! The discovery sources that run, and what each of them has found last.
//!
//! A reload keeps what a source has found if the source still reads the same [place](Place), whatever
//! else of it has changed. Backends of sources that a reload takes away stay while a source that the
//! same reload adds has not answered: a name server that is slow must not empty the fleet.

#[cfg(feature = "kubernetes")]
mod kubernetes;
mod run;
#[cfg(test)]
mod tests;

use crate::config::{BackendConfig, Config, Discovery, Kubernetes};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokenweir_net::supervise::{self, Supervised, Task};
use tokio::sync::watch;

/// The sources of one configuration. Those that no `Sources` has any more end.
pub(crate) struct Sources {
    configured: Vec<Source>,
    /// What the last reloads took away. It counts while [`Sources::is_waiting`].
    replaced: Vec<Replaced>,
    news: watch::Receiver<()>,
    sender: watch::Sender<()>,
}

/// A source with its settings.
struct Source {
    settings: Discovery,
    running: Arc<Running>,
    /// A reload added it.
    is_new: bool,
}

/// The task that asks a place. Sources of several configurations may share it.
struct Running {
    found: Arc<Found>,
    _task: Supervised,
}

/// What a source has found last, as the source has it: without the settings of its entry.
struct Found {
    backends: Mutex<Option<Vec<BackendConfig>>>,
    news: watch::Sender<()>,
}

/// What a reload took away.
#[derive(Clone)]
enum Replaced {
    /// The backends that a source had found.
    Source(Box<Discovery>, Vec<BackendConfig>),
    /// `backends` of the configuration. They stay only where nothing else is left.
    Listed(Vec<BackendConfig>),
}

/// Where a source reads. Two sources of one place find the same.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    File(&'a PathBuf),
    Host(&'a str, Option<u16>),
    Service(&'a str),
    Kubernetes(&'a Kubernetes),
    Nowhere,
}

// === impl Sources ===

impl Sources {
    /// Starts the sources. Must be called inside a runtime.
    pub(crate) fn start(configured: &[Discovery]) -> Self {
        let (sender, news) = watch::channel(());
        let start = |settings: &Discovery| {
            let running = Running::start(settings, None, &sender);
            Source { settings: settings.clone(), running, is_new: false }
        };
        let sources = configured.iter().map(start).collect();
        Self { configured: sources, replaced: Vec::new(), news, sender }
    }

    /// The sources of another configuration: those whose place stays keep what they have found. These
    /// ones go on until they are dropped.
    pub(crate) fn reconfigured(&self, old: &Config, new: &Config) -> Self {
        let news = self.sender.subscribe();
        let sources: Vec<Source> =
            new.discovery.iter().map(|settings| self.next(settings)).collect();
        let mut replaced = Vec::new();
        // What goes away while nothing comes is not replaced.
        if sources.iter().any(|source| !self.has(&source.place())) {
            for source in &self.configured {
                let stays = sources.iter().any(|other| other.place() == source.place());
                if !stays && let Some(found) = source.running.found.get() {
                    replaced.push(Replaced::Source(Box::new(source.settings.clone()), found));
                }
            }
            replaced.push(Replaced::Listed(old.backends.clone()));
        }
        if self.is_waiting() {
            let earlier = self
                .replaced
                .iter()
                .filter(|earlier| !sources.iter().any(|source| earlier.is_at(&source.place())));
            replaced.extend(earlier.cloned());
        }
        Self { configured: sources, replaced, news, sender: self.sender.clone() }
    }

    /// The source with these settings: the one that reads the same place, if there is one.
    fn next(&self, settings: &Discovery) -> Source {
        let place = Place::of(settings);
        let settings = settings.clone();
        match self.configured.iter().find(|source| source.place() == place) {
            Some(known) if known.settings.every == settings.every => {
                Source { settings, running: known.running.clone(), is_new: known.is_new }
            }
            Some(known) => {
                let found = known.running.found.get();
                let running = Running::start(&settings, found, &self.sender);
                Source { settings, running, is_new: known.is_new }
            }
            None => {
                let mut earlier = self.replaced.iter().filter(|_| self.is_waiting());
                let found = earlier.find_map(|earlier| match earlier {
                    Replaced::Source(_, found) if earlier.is_at(&place) => Some(found.clone()),
                    _ => None,
                });
                let running = Running::start(&settings, found, &self.sender);
                Source { settings, running, is_new: true }
            }
        }
    }

    /// Waits until each source has found something, or `patience` is over.
    pub(crate) async fn first(&mut self, patience: Duration) {
        let all = async {
            while self.configured.iter().any(|source| !source.has_told()) {
                self.changed().await;
            }
        };
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// Waits until each source that a reload added has found something, or `patience` is over.
    /// Whether all have.
    pub(crate) async fn first_of_new(&mut self, patience: Duration) -> bool {
        let all = async {
            while self.is_waiting() {
                self.changed().await;
            }
        };
        tokio::time::timeout(patience, all).await.is_ok()
    }

    /// Waits until a source has found something new.
    pub(crate) async fn changed(&mut self) {
        // This has a sender, too.
        let _ = self.news.changed().await;
    }

    fn has(&self, place: &Place<'_>) -> bool {
        self.configured.iter().any(|source| source.place() == *place)
    }

    /// Whether a source that a reload added has found nothing yet.
    fn is_waiting(&self) -> bool {
        self.configured.iter().any(|source| source.is_new && !source.has_told())
    }

    /// All backends: those of the configuration, and those that were found. Of two with one URL or
    /// name the first counts.
    pub(crate) fn replicas(&self, config: &Config) -> Vec<BackendConfig> {
        let mut backends = config.backends.clone();
        for source in &self.configured {
            let found = source.running.found.get().unwrap_or_default();
            add(&mut backends, found.into_iter().map(|found| source.settings.complete(found)));
        }
        if !self.is_waiting() {
            return backends;
        }
        for replaced in &self.replaced {
            if let Replaced::Source(settings, found) = replaced {
                add(&mut backends, found.iter().cloned().map(|found| settings.complete(found)));
            }
        }
        for replaced in &self.replaced {
            if let Replaced::Listed(listed) = replaced
                && backends.is_empty()
            {
                backends.clone_from(listed);
            }
        }
        backends
    }
}

fn add(backends: &mut Vec<BackendConfig>, found: impl Iterator<Item = BackendConfig>) {
    for found in found {
        let is_same = |other: &BackendConfig| other.url == found.url || other.id() == found.id();
        if !backends.iter().any(is_same) {
            backends.push(found);
        }
    }
}

// === impl Source, Running, Found ===

impl Source {
    fn place(&self) -> Place<'_> {
        Place::of(&self.settings)
    }

    fn has_told(&self) -> bool {
        self.running.found.get().is_some()
    }
}

impl Running {
    /// Asks the place of a source, whose backends were `found` before.
    fn start(
        settings: &Discovery,
        found: Option<Vec<BackendConfig>>,
        news: &watch::Sender<()>,
    ) -> Arc<Self> {
        let found = Arc::new(Found { backends: Mutex::new(found), news: news.clone() });
        let (settings, telling) = (settings.clone(), found.clone());
        let run = move || run::run(settings.clone(), telling.clone());
        Arc::new(Self { found, _task: supervise::spawn(Task::Discovery, run) })
    }
}

impl Found {
    fn get(&self) -> Option<Vec<BackendConfig>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, backends: Vec<BackendConfig>) {
        *self.backends.lock().unwrap_or_else(PoisonError::into_inner) = Some(backends);
        self.news.send_replace(());
    }
}

// === impl Replaced, Place ===

impl Replaced {
    fn is_at(&self, place: &Place<'_>) -> bool {
        match self {
            Self::Source(settings, _) => Place::of(settings) == *place,
            Self::Listed(_) => false,
        }
    }
}

impl<'a> Place<'a> {
    fn of(settings: &'a Discovery) -> Self {
        // The configuration has checked that there is one.
        match settings {
            Discovery { file: Some(file), .. } => Self::File(file),
            Discovery { kubernetes: Some(pods), .. } => Self::Kubernetes(pods),
            Discovery { dns: Some(name), port, .. } => Self::Host(name, *port),
            Discovery { srv: Some(name), .. } => Self::Service(name),
            _ => Self::Nowhere,
        }
    }
}

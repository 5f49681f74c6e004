//! The configuration, read again: on SIGHUP, on a POST to the admin port, or when its file has
//! changed. One task makes all changes, one after the other, so that two can never mix. A
//! configuration with a mistake changes nothing.

use super::lasting::Lasting;
use super::parts::{backends, identities, limits, selection};
use super::process::{Chain, variable};
use super::signals::Hangups;
use super::sources::Sources;
use super::systemd;
use crate::admin::{Configuration, Request, Requests};
use crate::backend::Keeper;
use crate::config::{Config, ConfigError, Loaded, Overrides, Reloaded};
use crate::discovery::file::WatchedFile;
use crate::proxy::Gateway;
use crate::server::Limits;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::clock;
use tokenweir_net::client::Client;
use tokenweir_net::supervise;

/// Who changes the gateway while it runs.
pub(crate) struct Reloader {
    /// What holds now.
    pub(crate) loaded: Loaded,
    /// What flags and variables say besides; they do not change.
    pub(crate) overrides: Overrides,
    /// Where it is read again.
    pub(crate) file: Option<WatchedFile>,
    pub(crate) hangups: Hangups,
    pub(crate) requests: Requests,
    pub(crate) sources: Sources,
    pub(crate) lasting: Lasting,
    pub(crate) client: Client,
    pub(crate) keeper: Keeper,
    pub(crate) gateway: Arc<ArcSwap<Gateway>>,
    pub(crate) limits: Arc<ArcSwap<Limits>>,
    pub(crate) configuration: Arc<Configuration>,
}

/// What there is to do.
enum Task {
    /// Read the configuration again, and tell whoever asked.
    Reload(Option<Request>),
    /// Other replicas were found.
    Found,
}

/// How long replicas that come are waited for before those that go away get nothing new.
const PATIENCE: Duration = Duration::from_secs(1);

// === impl Reloader ===

impl Reloader {
    /// Makes every change that is asked for, for ever.
    pub(crate) async fn run(&mut self) {
        loop {
            let is_watched = self.loaded.config.reload.watch;
            let task = tokio::select! {
                Some(request) = self.requests.recv() => Task::Reload(Some(request)),
                () = self.hangups.next() => Task::Reload(None),
                () = changed(&mut self.file), if is_watched => Task::Reload(None),
                () = self.sources.changed() => Task::Found,
            };
            match task {
                Task::Found => self.on_found().await,
                Task::Reload(asked) => {
                    systemd::reloading();
                    let result = self.reload().await;
                    systemd::ready();
                    if let Some(request) = asked {
                        request.answer(result);
                    }
                }
            }
        }
    }

    async fn on_found(&mut self) {
        let config = &self.loaded.config;
        let replicas = self.sources.replicas(config);
        let found = backends(config, &replicas, variable)
            .and_then(|fleet| Ok((fleet, identities(&replicas)?)));
        match found {
            Ok((fleet, identities)) => {
                self.lasting.outbound.set_own(identities);
                tracing::info!(replicas = replicas.len(), "the fleet changes");
                self.lasting.gate.set_watchers(fleet.len());
                self.keeper.change(fleet, &selection(config), PATIENCE).await;
            }
            Err(error) => {
                tracing::error!(error = %Chain(&error), "what was found cannot be used");
            }
        }
    }

    async fn reload(&mut self) -> Result<String, String> {
        let reloaded = self.read_and_change();
        let reloaded = supervise::catch_async(supervise::Task::Reload, reloaded).await;
        let panicked = || Err("the reload panicked; the log says where".to_owned());
        match reloaded.unwrap_or_else(panicked) {
            Ok(reloaded) => Ok(told(&reloaded)),
            Err(problem) => {
                tracing::error!(problem, "the configuration cannot be used; the one before holds");
                self.configuration.failed();
                Err(problem)
            }
        }
    }

    async fn read_and_change(&mut self) -> Result<Reloaded, String> {
        let Some(file) = &mut self.file else {
            return Err("the gateway was started without a configuration file".to_owned());
        };
        // What changes from here on is news.
        file.skip().await;
        let read = Config::load(Some(file.path()), self.overrides.clone());
        if read.as_ref().is_err_and(ConfigError::is_unreadable) {
            // The reason may pass while the file stays as it is.
            file.forget();
        }
        let read = read.and_then(|loaded| loaded.require_backend().map(|()| loaded));
        let reloaded = self.loaded.reload(read.map_err(|error| error.to_string())?);
        self.change(&reloaded.loaded.config).await?;
        self.loaded = reloaded.loaded.clone();
        self.configuration.replace(self.loaded.view(), clock::wall());
        Ok(reloaded)
    }

    /// All that can fail comes first.
    async fn change(&mut self, config: &Config) -> Result<(), String> {
        let old = &self.loaded.config;
        let mut sources = self.sources.reconfigured(old, config);
        let has_other_sources = config.discovery != old.discovery;
        if has_other_sources && !sources.first_of_new(PATIENCE).await {
            tracing::warn!(
                "a new discovery source has not answered; until it does, the backends of the sources \
                 that it replaces stay"
            );
        }
        let replicas = sources.replicas(config);
        let fleet = backends(config, &replicas, variable);
        let fleet = fleet.map_err(|error| Chain(&error).to_string())?;
        let has_other_client = config.timeouts != old.timeouts;
        let client = if has_other_client { self.new_client(config) } else { self.client.clone() };
        let before = self.gateway.load_full();
        let next = self.lasting.next(config, &before, &replicas, client.clone(), variable);
        let next = next.map_err(|error| Chain(&error).to_string())?;
        if has_other_client || config.watch != old.watch {
            self.keeper.set(client.clone(), config.watch);
        }
        self.client = client;
        self.sources = sources;
        self.lasting.gate.set_watchers(fleet.len());
        self.keeper.change(fleet, &selection(config), PATIENCE).await;
        self.gateway.store(Arc::new(self.lasting.take(config, next)));
        self.limits.store(Arc::new(limits(config, self.lasting.files, replicas.len())));
        Ok(())
    }

    fn new_client(&self, config: &Config) -> Client {
        Client::with_tls(config.timeouts, self.lasting.outbound.clone())
            .with_descriptors(self.lasting.gate.descriptors().clone())
    }
}

async fn changed(file: &mut Option<WatchedFile>) {
    match file {
        Some(file) => file.changed().await,
        None => std::future::pending().await,
    }
}

/// Says what has changed, and gives the same for whoever asked.
fn told(reloaded: &Reloaded) -> String {
    let (changed, held) = (reloaded.changed.join(", "), reloaded.held.join(", "));
    tracing::info!(changed, "configuration read again");
    let mut told = if changed.is_empty() {
        "nothing has changed".into()
    } else {
        format!("changed: {changed}")
    };
    if !held.is_empty() {
        tracing::warn!(keys = held, "these need a restart; the old values hold");
        told.push_str("\nneeds a restart: ");
        told.push_str(&held);
    }
    told
}

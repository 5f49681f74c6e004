//! Builds the access control of clients: loads the file of tenants and keys at the start, and
//! reloads it when it changes.

use crate::config::{self, Config, ConfigError};
use std::path::PathBuf;
use std::sync::Arc;
use tokenweir_gateway::proxy::access::AccessControl;
use tokenweir_net::file_watcher::{FileWatcher, LoadError};
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_option::StartError;
use tokenweir_request::access::{KeyFile, QuotaRegistry, QuotaScope};
use tokenweir_settings::Environment;
use tokio::sync::watch;

/// Reloads the keys file when it changes.
#[derive(Clone)]
pub(crate) struct KeysFileWatcher {
    file: PathBuf,
    watcher: FileWatcher,
    /// The configured tiers (values of a metrics label) that tenants in the file may have.
    tiers: watch::Receiver<config::TiersConfig>,
}

impl KeysFileWatcher {
    /// Loads the file for the first time. An error prevents the start of the gateway, because without keys
    /// every client could use the backends.
    pub(crate) fn open(
        file: PathBuf,
        mut tiers: watch::Receiver<config::TiersConfig>,
    ) -> Result<(Self, KeyFile), ConfigError> {
        let mut watcher = FileWatcher::of_file_or_folder(file.clone());
        watcher.skip_current();
        let keys = config::load_keys(&file, &tiers.borrow_and_update())?;
        Ok((
            Self {
                file,
                watcher,
                tiers,
            },
            keys,
        ))
    }

    /// Reloads the file after each change of it or of the tiers, until the future is dropped. While the file is
    /// invalid or missing, the previous keys stay active.
    pub(crate) async fn watch(mut self, access: Arc<AccessControl>) {
        loop {
            tokio::select! {
                () = self.watcher.changed() => {}
                Ok(()) = self.tiers.changed() => {}
            }
            self.reload(&access).await;
        }
    }

    async fn reload(&mut self, access: &AccessControl) {
        let file = self.file.clone();
        let tiers = self.tiers.borrow_and_update().clone();
        let load = move || config::load_keys(&file, &tiers);
        let error = match self.watcher.load(load, ConfigError::is_unreadable).await {
            Ok(key_file) => {
                access.replace_keys(Some(&key_file));
                let file = self.file.display();
                let tenants = key_file.tenants.len();
                let keys = access.keys().map_or(0, |keys| keys.len());
                tracing::info!(%file, tenants, keys, "keys reloaded");
                return;
            }
            Err(LoadError::Unread(error)) => {
                tracing::error!(
                    error,
                    "keys file cannot be read: the previous keys stay active"
                );
                error
            }
            Err(LoadError::Invalid(error)) => {
                tracing::error!(%error, "keys file is invalid: the previous keys stay active");
                error.to_string()
            }
        };
        access.set_reload_error(error);
    }
}

/// Builds the access control of clients, and the watcher of the keys file. The watcher is `None` if no
/// keys file is configured.
pub(super) fn build_access(
    config: &Config,
    tiers: watch::Receiver<config::TiersConfig>,
    scope: QuotaScope,
    env: impl Environment,
) -> Result<(Arc<AccessControl>, Option<KeysFileWatcher>), StartError> {
    let file = config.access.keys_file.clone();
    let opened = file
        .map(|file| KeysFileWatcher::open(file, tiers))
        .transpose()?;
    let (watcher, keys) = opened.unzip();
    let quotas = Arc::new(QuotaRegistry::new(scope));
    let access = config.access.access_control(keys.as_ref(), quotas, env)?;
    Ok((Arc::new(access), watcher))
}

/// Starts the task that reloads the keys file when it changes. `None`: there is no keys file.
pub(super) fn watch_keys(
    watcher: Option<KeysFileWatcher>,
    access: &Arc<AccessControl>,
) -> Option<SupervisedTask> {
    let watcher = watcher?;
    let access = access.clone();
    Some(supervise::spawn(BackgroundTask::KEYS_FILE, move || {
        watcher.clone().watch(access.clone())
    }))
}

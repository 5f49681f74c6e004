//! Builds the access control of clients, and keeps its keys up to date.

use super::error::ApplicationError;
use super::keys_file::KeysFileWatcher;
use crate::config::Config;
use crate::proxy::access::AccessControl;
use std::sync::Arc;
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};

/// Builds the access control of clients, and the watcher of the keys file. `None`: no keys file is
/// configured.
pub(super) fn build(
    config: &Config,
    env: impl Fn(&str) -> Option<String>,
) -> Result<(Arc<AccessControl>, Option<KeysFileWatcher>), ApplicationError> {
    let file = config.access.keys_file.clone();
    let opened = file.map(|file| KeysFileWatcher::open(file, config.tiers.clone())).transpose()?;
    let (watcher, keys) = opened.unzip();
    Ok((Arc::new(config.access.access_control(keys.as_ref(), env)?), watcher))
}

/// Starts the task that reloads the keys file when it changes.
pub(super) fn watch_keys(watcher: KeysFileWatcher, access: &Arc<AccessControl>) -> SupervisedTask {
    let access = access.clone();
    supervise::spawn(BackgroundTask::KeysFile, move || watcher.clone().watch(access.clone()))
}

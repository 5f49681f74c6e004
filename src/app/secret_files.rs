//! The secret files that a reload reads again: API keys of backends and of discovery sources, and URLs and
//! tokens of webhooks.

use crate::config::{BackendConfig, Config, Secret, SecretValue};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tokenweir_net::file_watcher::FileWatcher;
use tokenweir_request::access::KeyDigest;

/// The secret files, with the digest of each secret at the last read.
pub(super) struct SecretFiles {
    /// The digest of the secret in each file. `None`: the file cannot be read.
    contents: BTreeMap<PathBuf, Option<KeyDigest>>,
    watcher: FileWatcher,
}

impl SecretFiles {
    /// Reads the secret files named in `config` and in the backends `entries`. Must be called before the
    /// secrets are used, so that no later change of a file is missed.
    pub(super) fn new(config: &Config, entries: &[BackendConfig]) -> Self {
        let listed = entries.iter().filter_map(|entry| entry.api_key.as_ref());
        let secrets = config.reloaded_secrets().chain(listed);
        let files = secrets.filter_map(|secret| match secret {
            Secret::File(file) => {
                let value = secret.resolve(|_| None).ok();
                Some((file.clone(), value.as_ref().map(SecretValue::digest)))
            }
            Secret::Env(_) => None,
        });
        let contents: BTreeMap<PathBuf, Option<KeyDigest>> = files.collect();
        let mut watcher = FileWatcher::new(contents.keys().cloned());
        watcher.skip_current();
        Self { contents, watcher }
    }

    /// Waits until a secret file has changed. Never completes if no secret is in a file.
    pub(super) async fn changed(&mut self) {
        if self.contents.is_empty() {
            return std::future::pending().await;
        }
        self.watcher.changed().await;
    }

    /// Makes [`Self::changed`] report a change again later, because the files could not be read.
    pub(super) fn retry_later(&mut self) {
        self.watcher.retry_later();
    }

    /// Returns the secret files whose content differs from `previous`, as texts for operators.
    pub(super) fn changes_since(&self, previous: &Self) -> impl Iterator<Item = String> {
        let is_changed = |file: &PathBuf, content: &Option<KeyDigest>| {
            previous
                .contents
                .get(file)
                .is_some_and(|before| before != content)
        };
        let changed = self
            .contents
            .iter()
            .filter(move |(file, content)| is_changed(file, content));
        changed.map(|(file, _)| format!("the content of {}", file.display()))
    }
}

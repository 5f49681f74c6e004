//! An issuer and its keys. A background task reads the keys, and requests use the last read ones.

mod key_set;
mod keys_url;

pub(super) use key_set::KeySet;
pub(crate) use keys_url::KeysUrl;
pub(super) use keys_url::client;
pub(super) use tokenweir_net::client::HttpClient as OutboundClient;

use crate::refusal::Refusal;
use crate::signature::Algorithm;
use crate::token::Token;
use arc_swap::ArcSwapOption;
use key_set::MAX_DOCUMENT_BYTES;
use serde::Serialize;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokenweir_net::file_watcher::{self, FileWatcher};
use tokenweir_net::supervise::{self, BackgroundTask, SupervisedTask};
use tokenweir_protocol::clock;
use tokenweir_protocol::mutex::lock;
use tokio::sync::Notify;
use tokio::time::timeout_at;

/// Reads the keys of one issuer of tokens (`jwt`).
pub const TASK: BackgroundTask = BackgroundTask::new("issuer_keys");

pub(super) struct Issuer {
    /// The value of the claim `iss` in tokens of this issuer.
    pub(super) name: String,
    source: KeySource,
    /// The keys of the last successful read. `None`: no read has succeeded.
    keys: ArcSwapOption<KeySet>,
    /// Number of changes of `keys`.
    version: AtomicU64,
    /// Wakes the task for a refresh before the interval ends.
    wanted: Notify,
    state: Mutex<RefreshState>,
}

/// The source of the keys of an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeySource {
    File(PathBuf),
    Url(KeysUrl),
    Discovery(KeysUrl),
}

#[derive(Debug, Default)]
struct RefreshState {
    started: Option<Instant>,
    /// The time of the last successful read.
    succeeded: Option<Instant>,
    error: Option<String>,
}

/// The state of an issuer for status pages.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct IssuerStatus {
    /// The value of the claim `iss` in tokens of this issuer.
    pub issuer: String,
    /// Number of keys of the issuer.
    pub keys: usize,
    /// Time in seconds since the keys were last read successfully. `None`: no read has succeeded, or the keys
    /// come from a file.
    pub keys_age_seconds: Option<f64>,
    /// Why the last read failed. `None`: it succeeded, or no read has ended.
    pub error: Option<String>,
}

/// A JWKS file that cannot be used at the start of the gateway.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the keys of issuers in {} (jwks_file): {problem}", file.display())]
pub struct JwksFileError {
    file: PathBuf,
    problem: String,
}

/// Minimum time between the starts of two reads of one issuer, so that unknown key ids cannot overload the
/// issuer.
pub(crate) const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(10);

/// The keys, if they come from a file.
pub(super) fn check_file(source: &KeySource) -> Result<Option<KeySet>, JwksFileError> {
    let KeySource::File(file) = source else {
        return Ok(None);
    };
    let keys = read_file(file).map_err(|problem| JwksFileError {
        file: file.clone(),
        problem,
    })?;
    Ok(Some(keys))
}

impl Issuer {
    /// Creates an issuer. Keys from a file are read immediately.
    pub(super) fn open(name: &str, source: KeySource) -> Result<Arc<Self>, JwksFileError> {
        let issuer = Self {
            name: name.to_owned(),
            source,
            keys: ArcSwapOption::empty(),
            version: AtomicU64::new(0),
            wanted: Notify::new(),
            state: Mutex::default(),
        };
        if let Some(keys) = check_file(&issuer.source)? {
            issuer.on_read(Ok(keys));
        }
        Ok(Arc::new(issuer))
    }

    /// Starts the task that reads the keys.
    pub(super) fn spawn(
        self: &Arc<Self>,
        client: OutboundClient,
        interval: Duration,
    ) -> SupervisedTask {
        let issuer = self.clone();
        supervise::spawn(TASK, move || {
            let issuer = issuer.clone();
            let client = client.clone();
            async move {
                match &issuer.source {
                    KeySource::File(file) => issuer.watch(file).await,
                    _ => issuer.refresh(&client, interval).await,
                }
            }
        })
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// Checks the signature of a token with the last read keys, however old these are.
    pub(super) fn check_signature(
        &self,
        token: &Token<'_>,
        allowed: &[Algorithm],
    ) -> Result<(), Refusal> {
        match &*self.keys.load() {
            Some(keys) => keys.check_signature(token, allowed),
            None => Err(Refusal::NoKeys),
        }
    }

    /// Asks the task for a refresh, unless a refresh began recently. Does not wait.
    pub(super) fn request_refresh(&self, now: Instant) {
        if self.is_refresh_due(now) {
            self.wanted.notify_one();
        }
    }

    pub(super) fn status(&self, now: Instant) -> IssuerStatus {
        let state = lock(&self.state);
        let is_file = matches!(self.source, KeySource::File(_));
        let read_at = if is_file { None } else { state.succeeded };
        let age = read_at.map(|at| now.saturating_duration_since(at).as_secs_f64());
        IssuerStatus {
            issuer: self.name.clone(),
            keys: self.keys.load().as_ref().map_or(0, |keys| keys.len()),
            keys_age_seconds: age,
            error: state.error.clone(),
        }
    }

    fn is_refresh_due(&self, now: Instant) -> bool {
        let started = lock(&self.state).started;
        started.is_none_or(|at| now.saturating_duration_since(at) >= MIN_REFRESH_INTERVAL)
    }

    /// Reads the keys from their URL: every `interval`, sooner after a failure, and when a token has an unknown
    /// key.
    async fn refresh(&self, client: &OutboundClient, interval: Duration) {
        loop {
            lock(&self.state).started = Some(clock::now());
            let keys = self.fetch(client).await;
            let pause = if keys.is_ok() {
                interval
            } else {
                MIN_REFRESH_INTERVAL
            };
            self.on_read(keys);
            let due = (clock::now() + pause).into();
            while timeout_at(due, self.wanted.notified()).await.is_ok() {
                // A wake-up from before the last refresh is ignored.
                if self.is_refresh_due(clock::now()) {
                    break;
                }
            }
        }
    }

    async fn fetch(&self, client: &OutboundClient) -> Result<KeySet, String> {
        let discovered;
        let url = match &self.source {
            KeySource::Discovery(discovery) => {
                discovered = discovery.discover(client, &self.name).await?;
                &discovered
            }
            KeySource::Url(url) => url,
            KeySource::File(file) => return read_file(file),
        };
        KeySet::parse(&url.read(client).await?)
    }

    /// Reads the file whenever it changes.
    async fn watch(&self, file: &Path) {
        let mut watcher = FileWatcher::new([file.to_owned()]);
        loop {
            watcher.changed().await;
            let file = file.to_owned();
            let json = watcher.load(move || read_limited(&file), |_| true).await;
            let json = json.map_err(|error| error.to_string());
            self.on_read(json.and_then(|json| KeySet::parse(&json)));
        }
    }

    /// Stores new keys. After a failure, keeps the previous keys and logs only the first of several failures.
    fn on_read(&self, read: Result<KeySet, String>) {
        let issuer = &self.name;
        let mut state = lock(&self.state);
        match read {
            Ok(keys) => {
                state.succeeded = Some(clock::now());
                let is_changed = self.keys.load().as_deref() != Some(&keys);
                if is_changed || state.error.is_some() {
                    tracing::info!(
                        issuer,
                        keys = keys.len(),
                        "the keys of the issuer were read"
                    );
                }
                state.error = None;
                if is_changed {
                    self.keys.store(Some(Arc::new(keys)));
                    // The version changes after the keys, so that a token that older keys verified is not
                    // stored under the new version.
                    self.version.fetch_add(1, Ordering::SeqCst);
                }
            }
            Err(error) => {
                if state.error.as_ref() != Some(&error) {
                    tracing::warn!(
                        issuer,
                        error,
                        "the keys of the issuer cannot be read: the previous keys stay valid"
                    );
                }
                state.error = Some(error);
            }
        }
    }
}

fn read_file(path: &Path) -> Result<KeySet, String> {
    let json = read_limited(path).map_err(|error| error.to_string())?;
    KeySet::parse(&json)
}

/// Reads a file up to one byte more than the maximum length of a document.
fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file_watcher::open_regular(path)?
        .take(MAX_DOCUMENT_BYTES as u64 + 1)
        .read_to_end(&mut content)?;
    Ok(content)
}

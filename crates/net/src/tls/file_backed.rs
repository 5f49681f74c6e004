//! A value that is built from files and rebuilt when the files change.
//!
//! Each new connection reads the current value; open connections keep theirs. If the new files are
//! invalid, the previous value stays in use: a gateway with an old certificate can serve, and a
//! gateway without a certificate cannot.

use super::error::TlsError;
use super::pem::PemFile;
use crate::file_watcher::FileWatcher;
use arc_swap::ArcSwap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// A value that is built from files.
pub(super) struct FileBacked<T> {
    files: Box<[PathBuf]>,
    watcher: Mutex<FileWatcher>,
    build: Box<BuildFn<T>>,
    current: ArcSwap<BuiltConfig<T>>,
}

type BuildFn<T> = dyn Fn(&[PemFile]) -> Result<BuiltConfig<T>, TlsError> + Send + Sync;

/// A built value and the expiry of its certificate.
pub(super) struct BuiltConfig<T> {
    pub(super) value: Arc<T>,
    pub(super) expires_at: Option<SystemTime>,
}

/// A value that can be reloaded from its files.
pub(super) trait Reloadable: Send + Sync {
    /// Rebuilds the value if its files have changed. `None`: they have not.
    fn reload_if_changed(&self) -> Option<Result<(), TlsError>>;
    /// Expiry of the certificate. `None`: the value has no certificate.
    fn expires_at(&self) -> Option<SystemTime>;
    /// The paths of the files, for logs.
    fn describe_files(&self) -> String;
}

// === impl FileBacked ===

impl<T> FileBacked<T> {
    /// Builds the first value. `build` gets the files in the order of `files`.
    pub(super) fn new(
        files: Vec<PathBuf>,
        build: impl Fn(&[PemFile]) -> Result<BuiltConfig<T>, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let mut watcher = FileWatcher::new(files.clone());
        watcher.skip_current();
        let built = build(&read_files(&files)?)?;
        Ok(Self {
            files: files.into(),
            watcher: Mutex::new(watcher),
            build: Box::new(build),
            current: ArcSwap::from_pointee(built),
        })
    }

    /// The current value.
    pub(super) fn get(&self) -> Arc<T> {
        self.current.load().value.clone()
    }
}

impl<T: Send + Sync> Reloadable for FileBacked<T> {
    fn reload_if_changed(&self) -> Option<Result<(), TlsError>> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if !watcher.poll() {
            return None;
        }
        let read = read_files(&self.files);
        if read.is_err() {
            watcher.retry_later();
        }
        let built = read.and_then(|files| (self.build)(&files));
        Some(built.map(|built| self.current.store(Arc::new(built))))
    }

    fn expires_at(&self) -> Option<SystemTime> {
        self.current.load().expires_at
    }

    fn describe_files(&self) -> String {
        let files = self.files.iter().map(|file| file.display().to_string());
        files.collect::<Vec<_>>().join(", ")
    }
}

fn read_files(files: &[PathBuf]) -> Result<Vec<PemFile>, TlsError> {
    files.iter().map(|file| PemFile::read(file)).collect()
}

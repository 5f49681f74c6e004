//! A value that is built from files and rebuilt when the files change.
//!
//! A new connection uses the current value, and an open connection keeps the value with which it was opened. If
//! changed files are invalid, the previous value stays in use: a gateway with an old certificate can serve, and
//! a gateway without a certificate cannot.

use super::error::TlsError;
use super::pem::PemFile;
use crate::file_watcher::FileWatcher;
use arc_swap::ArcSwap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::SystemTime;

/// A value that is built from files and rebuilt when they change.
pub(super) struct FileBacked<T> {
    files: Box<[PathBuf]>,
    watcher: Mutex<FileWatcher>,
    /// Builds the value from the contents of `files`, in their order.
    build: Box<BuildFn<T>>,
    current: ArcSwap<BuiltConfig<T>>,
}

type BuildFn<T> = dyn Fn(&[PemFile]) -> Result<BuiltConfig<T>, TlsError> + Send + Sync;

/// A value that was built from files, and the expiry of its certificate.
pub(super) struct BuiltConfig<T> {
    pub value: Arc<T>,
    /// The earliest expiry of the certificate chain. `None`: the value has no certificate.
    pub expires_at: Option<SystemTime>,
}

pub(super) trait Reloadable: Send + Sync {
    /// Rebuilds the value if its files have changed. `None`: the files have not changed, or another call is
    /// reloading them. After an error, the previous value stays in use.
    fn reload_if_changed(&self) -> Option<Result<(), TlsError>>;
    /// The earliest expiry of the certificate chain. `None`: the value has no certificate.
    fn expires_at(&self) -> Option<SystemTime>;
    /// The paths of the files as text for logs.
    fn describe_files(&self) -> String;
}

impl<T> FileBacked<T> {
    /// Builds the first value from the files. `build` gets their contents in the order of `files`.
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

    pub(super) fn get(&self) -> Arc<T> {
        self.current.load().value.clone()
    }
}

impl<T: Send + Sync> Reloadable for FileBacked<T> {
    fn reload_if_changed(&self) -> Option<Result<(), TlsError>> {
        // If another call is reading the files, it holds the lock, and this call does nothing.
        let mut watcher = match self.watcher.try_lock() {
            Ok(watcher) => watcher,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if !watcher.poll() {
            return None;
        }
        let contents = read_files(&self.files);
        if contents.is_err() {
            watcher.retry_later();
        }
        let built = contents.and_then(|files| (self.build)(&files));
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

//! A value that is built from files and rebuilt when the files change.
//!
//! Each new connection reads the current value; open connections keep theirs. If the new files are
//! invalid, the previous value stays in use: a gateway with an old certificate can serve, and a
//! gateway without a certificate cannot.

use super::error::TlsError;
use super::pem::PemFile;
use arc_swap::ArcSwap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// A value that is built from files.
pub(super) struct FileBacked<T> {
    files: Box<[PathBuf]>,
    build: Box<BuildFn<T>>,
    current: ArcSwap<BuiltConfig<T>>,
    /// Content of the files at the last build, so that each change is tried once. Empty after a
    /// failed read.
    last_attempted: Mutex<Vec<PemFile>>,
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

impl<T> FileBacked<T> {
    /// Builds the first value. `build` gets the files in the order of `files`.
    pub(super) fn new(
        files: Vec<PathBuf>,
        build: impl Fn(&[PemFile]) -> Result<BuiltConfig<T>, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let read = read_files(&files)?;
        let built = build(&read)?;
        Ok(Self {
            files: files.into(),
            build: Box::new(build),
            current: ArcSwap::from_pointee(built),
            last_attempted: Mutex::new(read),
        })
    }

    /// The current value.
    pub(super) fn get(&self) -> Arc<T> {
        self.current.load().value.clone()
    }
}

impl<T: Send + Sync> Reloadable for FileBacked<T> {
    fn reload_if_changed(&self) -> Option<Result<(), TlsError>> {
        let read = match read_files(&self.files) {
            Ok(read) => read,
            Err(error) => {
                // A failed read is reported once, until a read succeeds again.
                let mut attempted =
                    self.last_attempted.lock().unwrap_or_else(PoisonError::into_inner);
                return (!std::mem::take(&mut *attempted).is_empty()).then_some(Err(error));
            }
        };
        {
            let mut attempted = self.last_attempted.lock().unwrap_or_else(PoisonError::into_inner);
            if *attempted == read {
                return None;
            }
            (*attempted).clone_from(&read);
        }
        Some((self.build)(&read).map(|built| self.current.store(Arc::new(built))))
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

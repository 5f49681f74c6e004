//! Something that is made of files, and made anew when they change. Whoever uses it takes it from
//! here each time; connections keep what they began with. If the new files cannot be used, the old
//! one stays, since a gateway with yesterday's certificate serves and one without does not.

use super::TlsError;
use super::pem::Pem;
use arc_swap::ArcSwap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Something made of files.
pub(super) struct Fresh<T> {
    files: Box<[PathBuf]>,
    make: Box<Make<T>>,
    current: ArcSwap<Made<T>>,
    /// What was in the files when they were last tried, so that each change is tried once.
    tried: Mutex<Vec<Pem>>,
}

type Make<T> = dyn Fn(&[Pem]) -> Result<Made<T>, TlsError> + Send + Sync;

/// What was made, and when the certificate in it ends.
pub(super) struct Made<T> {
    pub(super) value: Arc<T>,
    pub(super) expires: Option<SystemTime>,
}

/// What can be made anew.
pub(super) trait Reload: Send + Sync {
    /// Makes it anew if its files have changed. `None`: they have not.
    fn reload(&self) -> Option<Result<(), TlsError>>;
    /// When its certificate ends.
    fn expires(&self) -> Option<SystemTime>;
    /// The files, for a person.
    fn files(&self) -> String;
}

impl<T> Fresh<T> {
    /// Makes it for the first time. The files are given to `make` in their order.
    pub(super) fn new(
        files: Vec<PathBuf>,
        make: impl Fn(&[Pem]) -> Result<Made<T>, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let read = read(&files)?;
        let made = make(&read)?;
        Ok(Self {
            files: files.into(),
            make: Box::new(make),
            current: ArcSwap::from_pointee(made),
            tried: Mutex::new(read),
        })
    }

    /// What it is now.
    pub(super) fn get(&self) -> Arc<T> {
        self.current.load().value.clone()
    }
}

impl<T: Send + Sync> Reload for Fresh<T> {
    fn reload(&self) -> Option<Result<(), TlsError>> {
        let read = match read(&self.files) {
            Ok(read) => read,
            Err(error) => {
                // Told again only when something else has been there meanwhile.
                let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
                return (!std::mem::take(&mut *tried).is_empty()).then_some(Err(error));
            }
        };
        {
            let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
            if *tried == read {
                return None;
            }
            (*tried).clone_from(&read);
        }
        Some((self.make)(&read).map(|made| self.current.store(Arc::new(made))))
    }

    fn expires(&self) -> Option<SystemTime> {
        self.current.load().expires
    }

    fn files(&self) -> String {
        let files = self.files.iter().map(|file| file.display().to_string());
        files.collect::<Vec<_>>().join(", ")
    }
}

fn read(files: &[PathBuf]) -> Result<Vec<Pem>, TlsError> {
    files.iter().map(|file| Pem::read(file)).collect()
}

//! Access to values that threads share.

use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

/// A value that many threads read and few change. If a thread panics while it holds the lock, the value stays
/// usable, as with [`lock`].
#[derive(Debug)]
pub struct SharedLock<T>(RwLock<T>);

/// Locks a mutex. If a thread panicked while it held the lock, the value is used as that thread left it: a
/// panic ends one request or one task, and all others go on.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> SharedLock<T> {
    /// Puts the value behind a lock.
    pub const fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// The value for reading. `None`: a writer holds the lock; the function does not wait.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        match self.0.try_read() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value for reading. Waits for a writer.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the value for changes. Waits for readers and writers.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

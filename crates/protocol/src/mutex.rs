//! Access to values that threads share.

use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

/// A value that many threads read and few change. As with [`lock`], a panic of a thread that held the
/// lock leaves the value usable.
#[derive(Debug)]
pub struct SharedLock<T>(RwLock<T>);

/// Locks a mutex. After a panic of a thread that held the lock, the value is used as that thread left
/// it: a panic ends one request or one task, and the other requests and tasks go on.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl SharedLock ===

impl<T> SharedLock<T> {
    /// Creates a lock around this value.
    pub const fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// The value for reading. `None`: a writer has locked it, and the caller does not wait.
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

    /// Locks the value for changes and returns it.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

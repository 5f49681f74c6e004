//! Access to values that threads share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. After a panic of a thread that held the lock, the value is used as that thread left
/// it: a panic ends one request or one task, and the other requests and tasks go on.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

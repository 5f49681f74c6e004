//! How a stream leaves a backend that is down and silent.

use std::time::Duration;

/// Why a stream leaves its backend, or that it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The backend sends again, or is up again.
    Over,
    /// The stream goes on at another backend if one can continue it.
    Moves,
    /// The stream ends if no other backend continues it.
    Ends,
}

/// Silence of a stream whose backend is down, after which another backend continues the stream. It costs
/// no output if the backend would have gone on.
pub(super) const MOVE_SILENCE: Duration = Duration::from_secs(5);

/// Silence of a stream whose backend is down, after which the stream ends.
pub(super) const LOST_SILENCE: Duration = Duration::from_secs(15);

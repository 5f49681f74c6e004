//! How a stream leaves a backend that is down and silent.

use std::time::Duration;

/// The effect on a stream of a backend that is down and silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The stream stays: the backend sends again, or is up again.
    Over,
    /// The stream continues at another backend, if one can continue it.
    Moves,
    /// The stream ends if no other backend continues it.
    Ends,
}

/// Silence after which another backend continues the stream of a backend that is down. If the backend would
/// have recovered, moving the stream costs no output.
pub(super) const MOVE_SILENCE: Duration = Duration::from_secs(5);

/// Silence after which the stream of a backend that is down ends.
pub(super) const LOST_SILENCE: Duration = Duration::from_secs(15);

//! How a stream ends early, or is interrupted to go on at another backend.

use crate::continuation::InterruptionCause;
use crate::record::Termination;

/// How the gateway itself interrupts a stream.
pub(super) enum Cut {
    /// The stream ends for this reason.
    End(Termination),
    /// The stream goes on at another backend for this reason, if one can continue it.
    Move(InterruptionCause),
    /// The stream ends, because its backend is down, if no other backend continues it.
    Lost,
}

/// Why the gateway stops reading the response of a backend, whether the response is complete or not.
pub(super) enum EarlyEnd<E> {
    /// The body ended or failed.
    Body(Result<(), E>),
    /// The backend sent no output for too long.
    Stall,
    /// The events of the response show that the backend cannot complete it.
    Events,
    /// The response may go on, but the stream must move to another backend for this reason.
    Move(InterruptionCause),
    /// The backend is down and sends nothing.
    Lost,
}

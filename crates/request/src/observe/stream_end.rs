//! How a stream ends, or is interrupted, before its time.

use crate::record::Termination;

/// Why a stream is interrupted from outside.
pub(super) enum Cut {
    /// The stream ends.
    End(Termination),
    /// The stream goes on at another backend.
    Move,
}

/// How the response of a backend ends before its time.
pub(super) enum EarlyEnd<E> {
    /// The body ended or failed.
    Body(Result<(), E>),
    /// The backend sent no output for too long.
    Stall,
    /// The events show that the backend cannot go on.
    Events,
    /// The response goes on, but the stream must move to another backend.
    Move,
}

//! How a response ends, and how the gateway interrupts a stream.

use crate::record::Termination;

/// Why the gateway truncated a body.
#[derive(Debug, thiserror::Error)]
pub enum ObservedBodyError<E> {
    /// The backend's body failed, for example because its connection broke.
    #[error(transparent)]
    Backend(E),
    /// The gateway ended the stream: the backend was too slow, the total timeout expired, the API key of
    /// the client was removed, or the gateway shuts down.
    #[error("the gateway aborted the stream: a timeout, a removed API key or its shutdown")]
    Aborted(Termination),
    /// The body forwards the response of a request with an `Idempotency-Key` to one of its connections. That
    /// response ended early, or turned into an error after the gateway had begun a JSON body.
    #[error("the forwarded response ended early, or is an error although its body had begun")]
    Followed,
    /// The backend ended the stream as HTTP requires, but inside an event.
    #[error("the backend ended the stream inside an event")]
    InsideEvent,
    /// The backend is down and sent nothing.
    #[error("the backend is down and sent nothing")]
    Lost,
    /// The stream was interrupted, and no other backend continued it.
    #[error("the stream was interrupted, and no other backend continued it")]
    NotContinued,
}

/// How a response ends: regularly, or with this error.
pub(super) type Ending<E> = Result<(), ObservedBodyError<E>>;

/// How the gateway itself interrupts a stream.
pub(super) enum Cut<E> {
    End(ObservedBodyError<E>),
    /// The stream leaves its backend for this reason, if another backend can continue it.
    Leave(LeaveReason),
}

/// Why a stream should leave its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaveReason {
    /// The backend was removed, or an operator drains it and moves its streams.
    Removed,
    /// The backend is down and has been silent for a moment.
    Down,
}

impl<E> ObservedBodyError<E> {
    /// Whether the stream ends because its backend sent nothing for too long.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Self::Lost | Self::Aborted(Termination::IdleTimeout))
    }
}

impl<E> Cut<E> {
    /// Whether the backend is the reason, instead of the request or the gateway.
    pub(super) fn is_about_backend(&self) -> bool {
        match self {
            Self::End(error) => error.is_silence(),
            Self::Leave(_) => true,
        }
    }
}

/// The termination in the record of a response that ends in this way.
pub(super) fn termination<E>(ending: &Ending<E>) -> Termination {
    match ending {
        Ok(()) | Err(ObservedBodyError::InsideEvent) => Termination::Complete,
        Err(ObservedBodyError::Aborted(termination)) => *termination,
        Err(_) => Termination::UpstreamReset,
    }
}

//! Errors of the decoder.

/// A payload is no batch of events. Events before the error were valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The payload ends too early, or a length in it exceeds the payload.
    #[error("the event batch is truncated")]
    Truncated,
    /// A byte or a text is invalid.
    #[error("the event batch is not MessagePack")]
    NotMessagePack,
    /// A value has another type than vLLM writes.
    #[error("a value in the event batch has an unexpected type")]
    WrongType,
}

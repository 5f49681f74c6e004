//! Why a request cannot get the response that belongs to its `Idempotency-Key`. The statuses of the first two
//! are those of draft-ietf-httpapi-idempotency-key-header.

use tokenweir_request::error::{GatewayError, OptionError};

/// The key belongs to a request with another path, query, content type or body: 422.
pub(crate) const OTHER_REQUEST: GatewayError = GatewayError::Option(&OptionError {
    reason: "idempotency_key",
    message: "the Idempotency-Key belongs to another request of this client: repeat that request \
              byte for byte, or use a new key",
    is_conflict: false,
});

/// Too many connections already get the response: 409.
pub(crate) const TOO_MANY_READERS: GatewayError = GatewayError::Option(&OptionError {
    reason: "idempotency_key",
    message: "too many connections get the response of this Idempotency-Key: close one, or wait",
    is_conflict: true,
});

/// `Last-Event-ID` names no event of a response that this gateway keeps for the request: 412, because
/// the header is a condition that does not hold.
pub(crate) const UNKNOWN_EVENT: GatewayError = GatewayError::Option(&OptionError {
    reason: "last_event_id",
    message: "this gateway does not keep the response of which Last-Event-ID names an event: repeat \
              the request without Last-Event-ID, and discard the events of the earlier response",
    is_conflict: false,
});

//! The exchange with other gateways. It reports to the others which prompts this gateway sends to which
//! backend, and adds the prompts and the load of the others to the estimates of the backends.
//!
//! A request only puts a value into a bounded queue, and does not wait. Without the message bus the
//! gateway estimates from its own requests.

pub(super) mod peer_exchange;
pub(super) mod status;

pub use peer_exchange::{PeerExchange, PeerExchangeSettings, Peers};
pub use status::PeerExchangeStatus;

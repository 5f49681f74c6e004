//! The data exchange with other gateways before the same backends. It reports to them which prompts
//! this gateway sends to which backend, and adds their prompts and their load to the estimates of
//! the backends.
//!
//! A request only puts a value into a bounded queue, and does not wait. While the message bus cannot be
//! reached, the gateway estimates from its own requests only.

pub(crate) mod peer_exchange;
pub mod rows;
pub(crate) mod status;

pub(super) use peer_exchange::ExchangeFacet;
pub use peer_exchange::{PeerExchange, PeerExchangeSettings};
pub use status::PeerExchangeStatus;

//! The data exchange with other gateways before the same backends. It reports to them which prompts
//! this gateway sends to which backend, and adds their prompts and their load to the estimates of
//! the backends.
//!
//! A request only puts a value into a bounded queue, and does not wait. While the message bus cannot be
//! reached, the gateway estimates from its own requests only.

mod exchange;
pub mod messages;
mod option;
pub mod rows;
mod section;
mod status;
mod task;

pub use exchange::{ExchangeFacet, PeerExchange};
pub use option::ExchangeOption;
pub use section::{PeerExchangeConfig, PeerExchangeError};
pub use status::PeerExchangeStatus;
pub use task::TASK;

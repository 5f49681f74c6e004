//! Watching an answer as it passes, without touching it. The observer is a pure state machine;
//! the exchange carries it through the life of a request and reports once; the body forwards
//! frames and shows them to its exchange.

mod body;
mod exchange;
mod observer;

pub use body::ObservedBody;
pub use exchange::{Exchange, Sink};
pub use observer::Observer;

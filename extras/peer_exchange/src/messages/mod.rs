//! Messages between gateways: the prompts that each gateway sends to backends, and the prompt tokens
//! that the backends must still compute for its requests.
//!
//! A message contains hashes and numbers. It is encrypted and authenticated with a key that all
//! gateways share, so a reader of the message bus learns only lengths and times. Everything except
//! [`bus`] has no I/O.

mod batch;
pub mod bus;
mod exchange_key;
mod message;
mod receiver;
mod sealer;

pub use batch::Batch;
pub use exchange_key::{ExchangeKey, KeyTooShort, MIN_KEY_BYTES, SessionId};
pub use message::{BackendBacklog, MAX_MESSAGE_BYTES, PeerMessage, SentPrompt};
pub use receiver::{MAX_CLOCK_DIFFERENCE, ReceivedMessage, Receiver, Rejection};
pub use sealer::Sealer;

//! Admission by live sessions.
//!
//! Agents send many turns in one session. Each turn has the whole conversation as its prompt, which an engine
//! does not compute again as long as it is in its KV cache. If more sessions are in progress than fit into the
//! caches, each turn evicts what the next turn of another session needs, and all engines compute the same prompts
//! again and again. No load figure of an engine shows this: an engine counts idle blocks of its cache as free.
//!
//! This option keeps the number of sessions in progress to those that fit. It decides as the gate of
//! admission which requests wait in the admission queue.

mod option;
mod section;
mod sessions_status;
mod settings;

mod session_gate;

mod session_admission;

pub mod rows;

pub use option::SessionsOption;
pub use session_admission::{GatewaySharing, SessionAdmission, Sharing};
pub use sessions_status::SessionsStatus;
pub use settings::SessionSettings;

//! What it means that a replica fails: for the request, which may go to another one, and for the
//! replica, which may be left alone for a while. Pure: times come in as arguments.

mod breaker;
mod poison;
mod symptom;

pub use breaker::{Breaker, Settings, Standing};
pub use poison::Poison;
pub use symptom::{Effect, Elsewhere, Symptom};

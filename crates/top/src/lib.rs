//! The terminal view of `tokenweir top`. A [`TopState`] is updated by keys and by snapshots of the
//! gateway, and a [`TopFrame`] draws it. This crate reads no clock, no keys and no sockets.

mod columns;
mod decision;
mod formatting;
mod frame;
mod rates;
mod state;

pub use decision::explanation;
pub use frame::{FrameOptions, TopFrame};
pub use state::{InputMode, KeyPress, Pane, TopState, UserAction};

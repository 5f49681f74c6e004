//! The terminal view of `tokenweir top`. A [`TopState`] is updated by keys and by snapshots of the
//! gateway, and a [`TopFrame`] draws it. This crate reads no clock, no keys and no sockets.

mod formatting;
mod pane;
mod rates;

mod columns;
mod decision;

mod state;

mod frame;

pub use decision::explanation;
pub use frame::{FrameOptions, TopFrame};
pub use pane::Pane;
pub use state::{InputMode, KeyPress, TopState, UserAction};

//! The terminal view of `tokenweir top`. Key presses and snapshots of the gateway update a
//! [`TopState`], and a [`TopFrame`] draws the state. This crate reads no clock, keyboard or socket.

mod formatting;
mod pane;
mod rates;
mod waterfall;

mod backend;
mod columns;
mod decision;
mod summary;

mod state;

mod frame;

pub use backend::DrainRisk;
pub use decision::explanation;
pub use frame::{FrameOptions, TopFrame};
pub use pane::Pane;
pub use summary::status_lines;

pub use state::{InputMode, TopState, UserAction};

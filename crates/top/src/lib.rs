//! What `tokenweir top` shows. A state takes keys and what the gateway says, and becomes a frame;
//! it reads no clock, no key and no socket itself.

mod columns;
mod explanation;
mod frame;
mod rates;
mod state;
mod words;

pub use explanation::explanation;
pub use frame::{Frame, Look};
pub use state::{Key, Mode, Pane, State, Wish};

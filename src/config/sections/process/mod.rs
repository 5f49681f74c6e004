//! The sections about the process: its shutdown and its reloads.

pub(crate) mod drain;
pub(crate) mod reload;

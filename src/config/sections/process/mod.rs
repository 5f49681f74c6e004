//! The sections about the process: its shutdown and its reloads.

pub(in crate::config) mod drain;
pub(in crate::config) mod reload;

//! The composition root: configuration in, a running gateway out.

pub mod assembly;
pub(crate) mod banner;
pub(crate) mod collectors;
mod diagnosing;
mod files;
mod hearing;
mod keys;
mod lasting;
pub(crate) mod logs;
mod memory;
pub(crate) mod parts;
pub(crate) mod ports;
pub(crate) mod process;
mod reload;
pub(crate) mod signals;
pub(crate) mod sources;
mod systemd;

//! The process and its environment: logs, signals, the service manager, memory and variables.

pub(crate) mod environment;
mod line_limit;
pub(crate) mod logging;
pub(crate) mod memory_limit;
pub(crate) mod signals;
pub(crate) mod starts;
pub(crate) mod systemd;

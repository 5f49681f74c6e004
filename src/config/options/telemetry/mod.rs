//! The sections of options that record requests.

pub(in crate::config) mod payload_log;
pub(in crate::config) mod quality;
pub(in crate::config) mod trace_capture;
pub(in crate::config) mod usage_log;

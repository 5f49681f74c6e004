//! The sections about requests to backends: models, routing, admission, timeouts, retries and health.

pub(in crate::config) mod admission;
pub(in crate::config) mod circuit_breaker;
pub(in crate::config) mod models;
pub(in crate::config) mod retry;
pub(in crate::config) mod routing;
pub(in crate::config) mod scrape;
pub(in crate::config) mod timeouts;

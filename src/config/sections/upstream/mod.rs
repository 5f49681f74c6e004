//! The sections about requests to backends: models, routing, admission, timeouts, retries and health.

pub(crate) mod admission;
pub(crate) mod circuit_breaker;
pub(crate) mod models;
pub(crate) mod retry;
pub(crate) mod routing;
pub(crate) mod scrape;
pub(crate) mod timeouts;

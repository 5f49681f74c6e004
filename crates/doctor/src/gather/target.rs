//! The server to read from, and the options of reading.

use crate::facts::TargetKey;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::address::BackendAddress;
use tokenweir_net::tls::OutboundTls;

/// A server to read from.
#[derive(Debug, Clone)]
pub struct GatherTarget {
    /// The name of the backend.
    pub id: String,
    /// The URL.
    pub url: BackendAddress,
    /// The key.
    pub key: TargetKey,
}

/// Options for gathering.
#[derive(Debug, Clone)]
pub struct GatherOptions {
    /// The TLS settings.
    pub outbound: Arc<OutboundTls>,
    /// Time limit for each response.
    pub timeout: Duration,
    /// Time limit for the measurement of the idle timeout. Zero: no measurement.
    pub idle: Duration,
    /// Whether the probe request is sent, which puts load on an engine.
    pub probe: bool,
}

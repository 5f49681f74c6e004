//! The server to read from, and the options of reading.

use crate::facts::TargetKey;
use std::sync::Arc;
use std::time::Duration;
use tokenweir_core::address::{BackendAddress, MetricsUrl};
use tokenweir_net::tls::OutboundTls;

/// A server to read from.
#[derive(Debug, Clone)]
pub struct GatherTarget {
    /// The name of the server in reports.
    pub id: String,
    /// The URL.
    pub url: BackendAddress,
    /// The URL of the metrics page. `None`: a known path of `url`.
    pub metrics_url: Option<MetricsUrl>,
    /// The API key or token of the server.
    pub key: TargetKey,
}

/// Options for gathering.
#[derive(Debug, Clone)]
pub struct GatherOptions {
    /// The TLS settings of connections.
    pub outbound: Arc<OutboundTls>,
    /// Time limit for each response.
    pub timeout: Duration,
    /// Time limit for the measurement of the idle timeout. Zero: no measurement.
    pub idle: Duration,
    /// Whether the probe is sent: a small streaming request that puts load on the engine.
    pub probe: bool,
}

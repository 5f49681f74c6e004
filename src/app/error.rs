//! Why the gateway cannot start or reload with a valid configuration.

use crate::config::{
    ConfigError, PeerExchangeError, ProxySettingsError, UnreadableSecret, WebhooksError,
};
use std::io;
use std::path::PathBuf;
use tokenweir_gateway::server::BindError;
use tokenweir_gateway::telemetry::metrics_registry::buckets::BucketOverridesError;
use tokenweir_gateway::telemetry::otel::{OtelSettingsError, SpanSinkStartError};
use tokenweir_gateway::telemetry::payload_log::PayloadSinkStartError;
use tokenweir_net::tls::TlsError;

/// Why the gateway cannot start or reload with a valid configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplicationError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Secret(#[from] UnreadableSecret),
    #[error(transparent)]
    PeerExchange(#[from] PeerExchangeError),
    #[error(transparent)]
    Webhooks(#[from] WebhooksError),
    #[error(transparent)]
    Keys(#[from] ConfigError),
    #[error(transparent)]
    Proxy(#[from] ProxySettingsError),
    #[error(transparent)]
    TraceSettings(#[from] OtelSettingsError),
    #[error(transparent)]
    Traces(#[from] SpanSinkStartError),
    #[error("cannot write the capture file {} (trace_capture.file)", file.display())]
    Capture { file: PathBuf, source: io::Error },
    #[error("cannot start the payload log (log.payloads)")]
    Content(#[from] PayloadSinkStartError),
    #[error("cannot start the quality samples (quality)")]
    Quality(#[source] PayloadSinkStartError),
    #[error(transparent)]
    Buckets(#[from] BucketOverridesError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

//! Checks whether a collector accepts spans, with an export request without spans.

use super::export;
use super::settings::TracingSettings;
use crate::telemetry::collector_client;
use opentelemetry_sdk::trace::SpanExporter;
use std::time::Duration;

impl TracingSettings {
    /// Sends an empty export request to the endpoint, and returns why it failed. `None`: tracing is
    /// disabled. Must be called inside a tokio runtime.
    pub async fn reach(&self, limit: Duration) -> Option<Result<(), String>> {
        self.endpoint.as_ref()?;
        let settings = Self { timeout: limit, ..self.clone() };
        let send = async {
            let outbound = collector_client::outbound(&settings.security, settings.protocol);
            let outbound = outbound.map_err(|error| error.to_string())?;
            let exporter = export::exporter(&settings, &outbound);
            let exporter = exporter.map_err(|error| error.to_string())?;
            exporter.export(Vec::new()).await.map_err(|error| error.to_string())
        };
        let result = tokio::time::timeout(limit, send).await;
        Some(result.unwrap_or_else(|_| Err(format!("no response within {limit:?}"))))
    }
}

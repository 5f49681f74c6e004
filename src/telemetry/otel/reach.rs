//! Whether a collector takes spans: it is sent a message without any.

use super::export;
use super::settings::Settings;
use crate::telemetry::collector;
use opentelemetry_sdk::trace::SpanExporter;
use std::time::Duration;

impl Settings {
    /// Sends an empty message to the endpoint. Why it was not taken, for people. `None`: traces
    /// are off. Must be called inside a tokio runtime.
    pub async fn reach(&self, limit: Duration) -> Option<Result<(), String>> {
        self.endpoint.as_ref()?;
        let settings = Self { timeout: limit, ..self.clone() };
        let sent = async {
            let outbound = collector::outbound(&settings.security, settings.protocol);
            let outbound = outbound.map_err(|error| error.to_string())?;
            let exporter = export::exporter(&settings, &outbound);
            let exporter = exporter.map_err(|error| error.to_string())?;
            exporter.export(Vec::new()).await.map_err(|error| error.to_string())
        };
        let sent = tokio::time::timeout(limit, sent).await;
        Some(sent.unwrap_or_else(|_| Err(format!("no answer within {limit:?}"))))
    }
}

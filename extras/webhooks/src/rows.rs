//! Status and metrics of the webhooks.

use super::sender::WebhookStatus;
use serde::Serialize;
use tokenweir_gateway::metric::prelude::*;
use tokenweir_gateway::status::StatusBlock;

/// The state of the messages to each webhook. Empty: no webhook is configured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct WebhookStatuses(pub Vec<WebhookStatus>);

impl StatusBlock for WebhookStatuses {
    const KEY: Option<&'static str> = Some("webhooks");
}

/// The metrics of the webhooks.
pub const ROWS: &[MetricDescriptor] = &[counts(
    "tokenweir_webhook_messages_total",
    "Messages to the webhooks, by result.",
    &[counted("result", |status| {
        let WebhookStatuses(webhooks) = status.blocks.get_or_default();
        let ok = webhooks.iter().map(|webhook| webhook.ok).sum();
        let failed = webhooks.iter().map(|webhook| webhook.failed).sum();
        vec![("ok", ok), ("failed", failed)]
    })],
)];

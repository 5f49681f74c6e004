//! The webhooks as an option.

use crate::check;
use crate::notifier::{TASK, WebhookNotifier};
use crate::rows::{self, WebhookStatuses};
use crate::section::WebhooksConfig;
use crate::settings::WebhookSettings;
use tokenweir_option::prelude::*;

impl GatewayOption for WebhookNotifier {
    type Settings = WebhooksConfig;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const STATUS_CHECKS: &'static [StatusCheck] = &[check];
    const TASKS: &'static [BackgroundTask] = &[TASK];

    fn start(
        self: &Arc<Self>,
        settings: WebhooksConfig,
        context: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        self.configure(WebhookSettings::read(&settings, context)?);
        parts.gateway.diagnosis.push(self.clone());
        Ok(())
    }

    fn obstacles(settings: &WebhooksConfig, context: &StartContext<'_>) -> Vec<Obstacle> {
        settings.obstacles(context)
    }

    fn add_status(&self, status: &mut StatusSnapshot, _: Instant) {
        status.blocks.add(WebhookStatuses(self.status()));
    }

    /// A changed token file is read even if its path in the configuration is the same.
    fn reload(
        self: Arc<Self>,
        settings: WebhooksConfig,
        context: &StartContext<'_>,
    ) -> Result<Change, StartError> {
        let settings = WebhookSettings::read(&settings, context)?;
        Ok(Box::new(move |_| self.configure(settings)))
    }
}

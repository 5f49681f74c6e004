//! The GPUs of backends as an option, and their cost.

use crate::gpu_monitor::{GpuMonitor, TASK};
use crate::section::CostConfig;
use crate::settings::GpuSettings;
use crate::{check, rows};
use tokenweir_option::prelude::*;

impl GatewayOption for GpuMonitor {
    type Settings = GpuSettings;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const STATUS_CHECKS: &'static [StatusCheck] = &[check];
    const TASKS: &'static [BackgroundTask] = &[TASK];

    fn join(
        self: &Arc<Self>,
        settings: GpuSettings,
        gateway: &ProxyContext,
        parts: &mut GatewayParts,
    ) -> Result<(), StartError> {
        parts.diagnosis.push(self.clone());
        self.configure(&settings, &gateway.backend_client);
        Ok(())
    }

    fn add_status(&self, status: &mut StatusSnapshot, now: Instant) {
        self.add_gpus(status, now);
    }

    fn reload(
        self: Arc<Self>,
        settings: GpuSettings,
        _: &StartContext<'_>,
    ) -> Result<Change, StartError> {
        Ok(Box::new(move |reloaded| {
            if reloaded.has_new_timeouts || !self.is_configured_as(&settings) {
                self.configure(&settings, reloaded.client);
            }
        }))
    }

    fn scraped_pages(settings: &GpuSettings) -> usize {
        settings.exporters.len()
    }
}

/// The cost of GPUs. The facet of each backend has it, so this option only has the section.
#[derive(Debug, Default)]
pub struct Cost;

impl GatewayOption for Cost {
    type Settings = CostConfig;
}

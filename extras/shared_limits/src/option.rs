//! Shared and persistent limits as an option.

use crate::rows;
use crate::section::SharedLimitsConfig;
use crate::task::{SharedLimits, TASK};
use tokenweir_option::prelude::*;

/// Shared and persistent limits as an option.
#[derive(Default)]
pub struct SharedLimitsOption(OnceLock<Arc<SharedLimits>>);

impl GatewayOption for SharedLimitsOption {
    type Settings = SharedLimitsConfig;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const TASKS: &'static [BackgroundTask] = &[TASK];

    fn join(
        self: &Arc<Self>,
        settings: SharedLimitsConfig,
        gateway: &ProxyContext,
        parts: &mut GatewayParts,
    ) -> Result<(), StartError> {
        let limits = SharedLimits::new(&settings, &gateway.state.access, parts.find());
        if let Some(limits) = limits {
            let _ = self.0.set(limits.clone());
            let task = limits.start();
            parts.ends.push(Box::pin(async move {
                task.stop().await;
                limits.shutdown().await;
            }));
        }
        Ok(())
    }

    fn add_status(&self, status: &mut StatusSnapshot, _: Instant) {
        if let Some(limits) = self.0.get() {
            status.blocks.add(limits.status());
        }
    }
}

//! The continuation of interrupted streams as an option.

use crate::rows::{self, ContinuationBytes};
use crate::step::{ContinuationSettings, ContinuationStreams};
use tokenweir_option::prelude::*;

impl GatewayOption for ContinuationStreams {
    type Settings = ContinuationSettings;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const DECISION_PARTS: &'static [DecisionPart] = &[rows::add_to_decision];

    fn start(
        self: &Arc<Self>,
        settings: ContinuationSettings,
        _: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        self.configure(settings);
        parts.gateway.requests.push(self.clone());
        Ok(())
    }

    /// Changes the settings, for streams that begin from now on.
    fn configure(&self, settings: ContinuationSettings) {
        self.memory.set_limit(settings.memory_bytes);
        self.settings.store(Arc::new(settings));
    }

    fn add_status(&self, status: &mut StatusSnapshot, _: Instant) {
        status.blocks.add(ContinuationBytes(self.used_bytes()));
    }
}

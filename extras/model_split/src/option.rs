//! The split of model names as an option.

use crate::model_splits::{ModelSplits, SplitSettings};
use crate::note::add_to_decision;
use crate::rows;
use crate::verdict::VERSION_TAKEN_OUT;
use tokenweir_option::prelude::*;

impl GatewayOption for ModelSplits {
    type Settings = SplitSettings;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const RULES: &'static [DiagnosisRule] = &[VERSION_TAKEN_OUT];
    const DECISION_PARTS: &'static [DecisionPart] = &[add_to_decision];

    fn start(
        self: &Arc<Self>,
        settings: SplitSettings,
        _: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        self.configure(settings);
        parts.gateway.requests.push(self.clone());
        parts.records.sinks.push(self.clone());
        parts.gateway.diagnosis.push(self.clone());
        Ok(())
    }

    fn configure(&self, settings: SplitSettings) {
        self.set_models(settings);
    }

    fn add_status(&self, status: &mut StatusSnapshot, now: Instant) {
        rows::add_status(self, status, now);
    }
}

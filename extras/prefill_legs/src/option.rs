//! Prefill legs as an option.

use crate::note::add_to_decision;
use crate::rows;
use crate::step::PrefillLegs;
use std::sync::Arc;
use tokenweir_option::{
    DecisionPart, GatewayOption, MetricDescriptor, OptionParts, StartContext, StartError,
};

impl GatewayOption for PrefillLegs {
    type Settings = ();
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const DECISION_PARTS: &'static [DecisionPart] = &[add_to_decision];

    fn start(
        self: &Arc<Self>,
        _settings: (),
        _: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        parts.requests.push(self.clone());
        Ok(())
    }
}

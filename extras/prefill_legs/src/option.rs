//! Prefill legs as an option.

use crate::note::add_to_decision;
use crate::rows;
use crate::step::PrefillLegs;
use tokenweir_option::prelude::*;

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
        parts.gateway.requests.push(self.clone());
        Ok(())
    }
}

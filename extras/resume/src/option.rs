//! The return of clients to responses (`streams.resume`) as an option.

use crate::resumption::Resumption;
use crate::rows::{self, ResumeBytes};
use tokenweir_option::prelude::*;
use tokenweir_request::runs::RunSettings;

impl GatewayOption for Resumption {
    /// The settings of the option. `None`: clients cannot return.
    type Settings = Option<RunSettings>;
    const ROWS: &'static [MetricDescriptor] = rows::ROWS;
    const DECISION_PARTS: &'static [DecisionPart] = &[rows::add_to_decision];

    fn start(
        self: &Arc<Self>,
        settings: Option<RunSettings>,
        _: &StartContext<'_>,
        parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        self.configure(settings);
        parts.gateway.requests.push(self.clone());
        parts.gateway.extensions.add(self.clone());
        Ok(())
    }

    fn configure(&self, settings: Option<RunSettings>) {
        self.settings.store(settings.map(Arc::new));
    }

    fn add_status(&self, status: &mut StatusSnapshot, _: Instant) {
        status.blocks.add(ResumeBytes(self.used_bytes()));
    }
}

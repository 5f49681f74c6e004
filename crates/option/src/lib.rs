//! The contract of an option that one line of the program attaches. The program creates the options of its list, and
//! puts what they bring in its place. The core knows none of them.

mod diagnosis;
mod parts;

pub use diagnosis::DiagnosisHooks;
pub use parts::OptionParts;

use std::sync::Arc;
use tokenweir_api::StatusCheck;
use tokenweir_gateway::metric::MetricDescriptor;
use tokenweir_gateway::telemetry::decision_log::DecisionPart;
use tokenweir_net::supervise::BackgroundTask;

/// An option with a section of its own in the configuration. It has the constants and adds the parts that it needs.
pub trait GatewayOption: Sized {
    /// The section, a `ConfigSection`.
    type Section;
    /// The values of the section.
    type Settings;

    /// The metrics of the option.
    const ROWS: &'static [MetricDescriptor] = &[];
    /// What the option adds to an entry of the decision log.
    const DECISION_PARTS: &'static [DecisionPart] = &[];
    /// The checks of the status of the option by `tokenweir doctor`.
    const STATUS_CHECKS: &'static [StatusCheck] = &[];
    /// The background tasks of the option.
    const TASKS: &'static [BackgroundTask] = &[];

    /// The option with these settings.
    fn new(settings: &Self::Settings) -> Self;

    /// Applies the settings of a reload.
    fn configure(&self, settings: &Self::Settings);

    /// Adds the parts of the option.
    fn attach(self: &Arc<Self>, parts: &mut OptionParts);
}

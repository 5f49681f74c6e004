//! The contract of an option. One line of the program adds an option to the gateway. The program starts all
//! options of its list and inserts their parts into the gateway. The core does not depend on any option.

mod context;
mod diagnosis;
mod parts;
pub mod prelude;
mod start_error;

pub use context::{Change, Obstacle, OutputTarget, Reloaded, StartContext};
pub use diagnosis::DiagnosisHooks;
pub use parts::{GatewayParts, OptionParts, RecordParts};
pub use start_error::{StartError, in_part};
use tokenweir_api::StatusCheck;
use tokenweir_diagnose::DiagnosisRule;
use tokenweir_gateway::backend::facets::BackendFacet;
use tokenweir_gateway::metric::MetricDescriptor;
use tokenweir_gateway::proxy::ProxyContext;
use tokenweir_gateway::status::StatusSnapshot;
use tokenweir_gateway::telemetry::decision_log::DecisionPart;
use tokenweir_net::supervise::BackgroundTask;

use std::sync::Arc;
use std::time::Instant;

/// An option of the gateway. It defines only the constants and functions that it needs. All others have
/// defaults.
pub trait GatewayOption: Default + Send + Sync + 'static {
    /// The settings of the option: its section of the configuration, a `ConfigSection`, or values that the list
    /// reads from other sections.
    type Settings: Send + 'static;

    /// The metrics of the option.
    const ROWS: &'static [MetricDescriptor] = &[];
    /// The rules about the gateway whose verdicts the option finds.
    const RULES: &'static [DiagnosisRule] = &[];
    /// The parts that the option adds to an entry of the decision log.
    const DECISION_PARTS: &'static [DecisionPart] = &[];
    /// The checks of the status of the option by `tokenweir doctor`.
    const STATUS_CHECKS: &'static [StatusCheck] = &[];
    /// The background tasks of the option.
    const TASKS: &'static [BackgroundTask] = &[];

    /// Starts the option and adds its parts, before the first backend exists. Is called inside a Tokio runtime.
    fn start(
        self: &Arc<Self>,
        _settings: Self::Settings,
        _context: &StartContext<'_>,
        _parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        Ok(())
    }

    /// The facet of the option for one backend. If the facet needs settings of the backend, the line of the option in
    /// the list creates it instead.
    fn facet(&self) -> Option<Box<dyn BackendFacet>> {
        None
    }

    /// Adds the parts that need the gateway, before it gets requests.
    fn join(
        self: &Arc<Self>,
        _settings: Self::Settings,
        _gateway: &ProxyContext,
        _parts: &mut GatewayParts,
    ) -> Result<(), StartError> {
        Ok(())
    }

    /// Applies the settings of a reload. The default does nothing, for settings that need a restart.
    fn configure(&self, _settings: Self::Settings) {}

    /// Prepares the settings of a reload, if this can fail or needs more than [`Self::configure`]. It may read
    /// files but changes nothing, so that the previous settings stay active after an error.
    fn reload(
        self: Arc<Self>,
        settings: Self::Settings,
        _context: &StartContext<'_>,
    ) -> Result<Change, StartError> {
        Ok(Box::new(move |_| self.configure(settings)))
    }

    /// Adds the blocks of the option to a status.
    fn add_status(&self, _status: &mut StatusSnapshot, _now: Instant) {}

    /// Number of pages that the option scrapes.
    fn scraped_pages(_settings: &Self::Settings) -> usize {
        0
    }

    /// The reasons why the option cannot start with these settings on this machine. Unreadable secrets do not
    /// count here.
    fn obstacles(_settings: &Self::Settings, _context: &StartContext<'_>) -> Vec<Obstacle> {
        Vec::new()
    }

    /// The destination to which the option writes requests, for the start banner. `None`: the option writes no
    /// requests.
    fn output(_settings: &Self::Settings) -> Option<OutputTarget> {
        None
    }
}

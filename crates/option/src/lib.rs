//! The contract of an option that one line of the program attaches. The program starts the options of its list, and
//! puts what they bring in its place. The core knows none of them.

mod context;
mod diagnosis;
mod parts;
pub mod prelude;
mod start_error;

pub use context::{Change, Obstacle, OutputTarget, Reloaded, StartContext};
pub use diagnosis::DiagnosisHooks;
pub use parts::OptionParts;
pub use start_error::{StartError, in_part};
use tokenweir_api::StatusCheck;
use tokenweir_gateway::backend::facets::BackendFacet;
use tokenweir_gateway::metric::MetricDescriptor;
use tokenweir_gateway::proxy::ProxyContext;
use tokenweir_gateway::status::StatusSnapshot;
use tokenweir_gateway::telemetry::decision_log::DecisionPart;
use tokenweir_net::supervise::BackgroundTask;

use std::sync::Arc;
use std::time::Instant;

/// An option of the gateway. It has the constants and functions that it needs; the others have defaults.
pub trait GatewayOption: Default + Send + Sync + 'static {
    /// Its settings: those of its section of the configuration, a `ConfigSection`, or those that the list reads from
    /// other sections.
    type Settings: Send + 'static;

    /// The metrics of the option.
    const ROWS: &'static [MetricDescriptor] = &[];
    /// What the option adds to an entry of the decision log.
    const DECISION_PARTS: &'static [DecisionPart] = &[];
    /// The checks of the status of the option by `tokenweir doctor`.
    const STATUS_CHECKS: &'static [StatusCheck] = &[];
    /// The background tasks of the option.
    const TASKS: &'static [BackgroundTask] = &[];

    /// Starts the option and adds its parts, before the first backend exists. Called inside a Tokio runtime.
    fn start(
        self: &Arc<Self>,
        _settings: Self::Settings,
        _context: &StartContext<'_>,
        _parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        Ok(())
    }

    /// What belongs to one backend. The list creates it instead if it needs settings of the backend.
    fn facet(&self) -> Option<Box<dyn BackendFacet>> {
        None
    }

    /// Adds the parts that need the gateway, before it gets requests.
    fn join(
        self: &Arc<Self>,
        _settings: Self::Settings,
        _gateway: &ProxyContext,
        _parts: &mut OptionParts,
    ) -> Result<(), StartError> {
        Ok(())
    }

    /// Applies the settings of a reload. The default is for settings that need a restart.
    fn configure(&self, _settings: Self::Settings) {}

    /// Prepares the settings of a reload, if that can fail or needs more than [`Self::configure`]. May read files,
    /// and changes nothing: an error keeps the previous settings.
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

    /// Why the option cannot start with these settings on this machine. Unreadable secrets are no obstacle here.
    fn obstacles(_settings: &Self::Settings, _context: &StartContext<'_>) -> Vec<Obstacle> {
        Vec::new()
    }

    /// Where the option writes requests, for the start banner. `None`: it writes none.
    fn output(_settings: &Self::Settings) -> Option<OutputTarget> {
        None
    }
}

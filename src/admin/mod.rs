//! HTTP API of the admin listener: metrics, probes, backend status, open streams, routing decisions, diagnosis,
//! the active configuration, reload and drain, a live page for browsers, and the external scaler for KEDA.

mod authorizer;
mod backend_status;
mod configuration;
mod drain;
mod endpoints;
mod page;
mod response;
mod router;
mod runbooks;
mod scaler;
mod state;
pub mod streams;
mod timeline;

pub use authorizer::AdminAuthorizer;
pub use backend_status::backend_status;
pub(crate) use backend_status::drain_summary;
pub use configuration::{ActiveConfiguration, ReloadRequest, ReloadRequests};
pub use router::router;
pub use scaler::MAX_SCALER_STREAMS;
pub use state::{Admin, LatestDiagnosis};
pub use timeline::Timeline;
pub(crate) use timeline::unix_seconds;

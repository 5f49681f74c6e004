//! The names that the file of an option needs.

pub use crate::{
    Change, DiagnosisHooks, GatewayOption, GatewayParts, Obstacle, OptionParts, OutputTarget,
    StartContext, StartError, in_part,
};
pub use std::sync::{Arc, OnceLock};
pub use std::time::Instant;
pub use tokenweir_api::StatusCheck;
pub use tokenweir_diagnose::DiagnosisRule;
pub use tokenweir_gateway::backend::facets::BackendFacet;
pub use tokenweir_gateway::metric::MetricDescriptor;
pub use tokenweir_gateway::proxy::ProxyContext;
pub use tokenweir_gateway::status::StatusSnapshot;
pub use tokenweir_gateway::telemetry::decision_log::DecisionPart;
pub use tokenweir_net::supervise::BackgroundTask;

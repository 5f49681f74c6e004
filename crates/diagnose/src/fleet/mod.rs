//! Verdicts about the fleet: whether backends can get requests, and whether requests are refused. Verdicts
//! about the gateway: its configuration, certificates, span collector and clients. All these verdicts
//! need the observations of a gateway, but not the metrics of engines.

mod observation;

mod backend_failures;
mod gateway_queue;
mod gateway_rules;
mod limits;
mod refused_by_backends;
mod restarts;
mod slow_clients;
mod starvation;
mod unserved_models;

mod rules;

mod differences;

mod fleet_diagnoser;

pub(crate) use differences::name_differences;
pub(crate) use fleet_diagnoser::{FleetDiagnoser, name_reload};
pub use limits::LIMIT_SETTINGS;
#[cfg(test)]
pub(crate) use observation::tests;
pub use observation::{
    AttemptCounts, AttemptFailures, AwaitedModel, CertificateReloads, CpuSupply, DrainSummary,
    FleetBackend, FleetObservation, GatewayConditions, LimitedClient, ObservedTtft, RecentCounts,
    RecentReload, RecentStarts, SettingValue, SlowUpload, UnforwardedCounts,
};
pub use rules::FLEET_RULES;

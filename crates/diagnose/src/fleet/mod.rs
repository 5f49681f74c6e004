//! Verdicts about the fleet: whether backends can be sent requests at all, and whether requests are
//! refused. They need a gateway, and no history: a state is exact when it is observed.

mod observation;

mod rules;

mod fleet_diagnoser;

pub(crate) use fleet_diagnoser::FleetDiagnoser;
pub use observation::{DrainNote, FleetBackend, FleetObservation};
pub use rules::{FLEET_RULES, FleetRule};

//! The table of inhibitions: which alert sends no notification while another alert fires.

/// An inhibition: while the alert `by` fires, `alert` sends no notification.
#[derive(Debug, Clone, Copy)]
pub struct AlertInhibition {
    /// Name of the inhibiting alert.
    pub by: &'static str,
    /// The verdict that the inhibiting alert must have as its label `verdict`. `None`: any verdict.
    pub verdict: Option<&'static str>,
    /// Name of the inhibited alert.
    pub alert: &'static str,
    /// The labels whose values must be equal on both alerts.
    pub equal: &'static [&'static str],
}

const NO_CAPACITY: Option<&str> = Some("no_capacity");
/// The labels that two alerts about the same verdict have in common.
const VERDICT: &[&str] = &["verdict"];
const MODEL: &[&str] = &["gen_ai_request_model"];

/// All inhibitions, in the order of the inhibiting alerts.
pub const INHIBITIONS: [AlertInhibition; 13] = [
    inhibition("TokenweirSloFastBurn", None, "TokenweirSloSlowBurn", &["slo"]),
    inhibition("TokenweirCriticalVerdict", None, "TokenweirKvCacheExhausted", VERDICT),
    inhibition("TokenweirCriticalVerdict", None, "TokenweirPreemptions", VERDICT),
    inhibition("TokenweirCriticalVerdict", None, "TokenweirVerdict", VERDICT),
    inhibition("TokenweirCriticalVerdict", NO_CAPACITY, "TokenweirBackendDown", &[]),
    inhibition("TokenweirCriticalVerdict", NO_CAPACITY, "TokenweirErrors", &[]),
    inhibition("TokenweirCriticalVerdict", NO_CAPACITY, "TokenweirRequestsShed", &[]),
    inhibition("TokenweirBackendDown", None, "TokenweirVerdict", VERDICT),
    inhibition("TokenweirKvCacheExhausted", None, "TokenweirVerdict", VERDICT),
    inhibition("TokenweirPreemptions", None, "TokenweirVerdict", VERDICT),
    inhibition("TokenweirTtftHigh", None, "TokenweirLatencyDegraded", MODEL),
    inhibition("TokenweirTpotHigh", None, "TokenweirLatencyDegraded", MODEL),
    inhibition("TokenweirRequestsShed", None, "TokenweirEngineQueueBacklog", &[]),
];

const fn inhibition(
    by: &'static str,
    verdict: Option<&'static str>,
    alert: &'static str,
    equal: &'static [&'static str],
) -> AlertInhibition {
    AlertInhibition { by, verdict, alert, equal }
}

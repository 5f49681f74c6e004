//! Diagnosis of backends under load. Rules derive named conditions, each with its evidence, from the metrics of
//! the engines and from the requests of the gateway.
//!
//! ```text
//! request_counters  counts the requests of each backend              ┐
//! sample            one observation: a metrics page and these counts ├─► history: the last five
//! step              the difference of two samples                    ┘   minutes in full, the last
//!                                                                        hour by the minute
//! measure  a table of values of a window ─► rules: a table of conditions ─► debounce ─► verdict
//! changes  the same values, compared with the last hour, and the strongest changes in words
//! arbitration  verdicts that are consequences of others become notes
//! fleet    states of backends, refused and failed requests, the gateway itself ─► verdict
//! ```
//! Rules about load match only if clients are harmed: high utilisation alone is not enough. A rule whose data
//! is missing is reported as undetermined. Functions get the time as an argument, so no module reads a clock.

mod harm;
mod history;
mod verdict;

mod recent;

mod fatal_requests;

mod debounce;
mod evaluation;
mod rule;

mod fleet;

mod request_counters;

mod arbitration;
mod changes;
mod rules;

mod alert_texts;
mod facts;

mod diagnoser;

pub use changes::measure_names;
pub use diagnoser::Diagnoser;
pub use fatal_requests::RequestEnds;
pub use fleet::{
    AttemptCounts, AttemptFailures, AwaitedModel, CertificateReloads, CpuSupply, DrainSummary,
    FLEET_RULES, FleetBackend, FleetObservation, GatewayConditions, LIMIT_SETTINGS, LimitedClient,
    ObservedTtft, RecentCounts, RecentReload, RecentStarts, SettingValue, SlowUpload,
    UnforwardedCounts,
};
pub use harm::{HARMED_SHARE, is_critical_harm, is_fault_of_servers};
pub use history::{
    BackendHistory, BackendRequestCounts, DiagnosisSample, EVERY, FAST, GatewayObservations,
    GpuCondition, LONG_WINDOW, SLOW_START,
};
pub use request_counters::BackendRequestCounters;
pub use rule::DiagnosisRule;
pub use rules::{RULES, safe_max_num_seqs};
pub use verdict::{
    AlertText, Anomaly, Change, Confidence, DiagnosedBackend, Diagnosis, Evidence, Origin,
    UndeterminedRule, Verdict, VerdictGroup, VerdictScope, VerdictSeverity,
};

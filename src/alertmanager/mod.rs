//! Sends the verdicts and anomalies of the diagnosis that hold to Alertmanagers, as alerts of its
//! API v2.
//!
//! The diagnosis task passes each diagnosis. One task for each Alertmanager posts the complete set of
//! alerts. A request repeats the state, so a lost request needs no queue. An Alertmanager that does
//! not respond affects nothing else.

mod settings;

mod held_alert;

mod alert_tracker;
mod sender;

mod notifier;

pub use notifier::{AlertmanagerNotifier, AlertmanagerStatus};
pub use settings::{AlertmanagerEndpoint, AlertmanagerSettings, SendIntervals};

pub use held_alert::{ANOMALY_RULE, AlertRule, VERDICT_RULE};

//! Limits of tenants over all gateways and over restarts.
//!
//! ```text
//! request ─► Quota (share of this gateway)    never waits
//!              ▲ │
//!    answers   │ ▼ claims, ten times a second
//!          task of this option ─► script at the server of the exchange: one call for each claim
//!                │
//!                ▼ every 2 s, at shutdown
//!              state file: usage of this gateway of daily and monthly quotas
//! ```
//!
//! While the server is unreachable, the last grants remain valid, and each gateway may use its share of the
//! ungranted rest. Claims report the usage of the gateway, so a server that lost its data learns the usage again.

mod claims;
mod grants;
mod option;
pub mod rows;
#[cfg(test)]
mod script_tests;
mod section;
#[cfg(test)]
mod simulation_tests;
mod state_file;
mod status;
mod task;

pub use option::SharedLimitsOption;
pub use section::SharedLimitsConfig;
pub use status::SharedLimitsStatus;
pub use task::SharedLimits;
pub use task::TASK;

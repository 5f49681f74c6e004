//! Canary requests: the gateway sends a small request to each backend without traffic. This detects an engine
//! that answers health checks but generates nothing before a client is affected. A canary request changes
//! neither the health of a backend nor its routing, and has no request record.

mod answer;
mod facet;
mod option;
mod rows;
mod settings;
mod task;

pub use option::CanaryRequests;
pub use settings::CanarySettings;

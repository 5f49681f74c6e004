//! Canary requests: a small request of the gateway to each backend that has had no traffic, so that an engine that
//! answers probes and generates nothing is known before a client meets it. A canary request changes neither the
//! health of a backend nor its routing, and it is no traffic: it has no record.

mod answer;
mod facet;
mod option;
mod rows;
mod settings;
mod task;

pub use option::CanaryRequests;
pub use settings::CanarySettings;

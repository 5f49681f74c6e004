//! The routing policies. Each policy is a pure function that chooses among candidates for a request.

pub mod kv_aware;
pub(super) mod least_requests;
pub(super) mod p2c;
pub(super) mod prefix_affinity;
pub(super) mod random;
#[cfg(test)]
mod reason_tests;
mod reasons;
pub(super) mod round_robin;
mod selection;
pub(super) mod session;

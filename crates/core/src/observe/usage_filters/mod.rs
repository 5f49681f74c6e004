//! Removal of usage that the gateway requested and the client did not.

mod usage_member;

#[cfg(test)]
mod tests;
mod usage_filter;

pub(super) use usage_filter::{EventParts, UsageFilter};
pub(super) use usage_member::UsageSplitter;

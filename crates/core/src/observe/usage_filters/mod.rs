//! Removal of usage that the gateway requested and the client did not.

mod usage_member;

mod continuous_usage_filter;
#[cfg(test)]
mod tests;
mod usage_event_filter;

pub(super) use continuous_usage_filter::{BlockEdit, ContinuousUsageFilter};
pub(super) use usage_event_filter::UsageEventFilter;
pub(super) use usage_member::UsageSplitter;

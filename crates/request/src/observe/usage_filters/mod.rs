//! Removal of usage that the gateway requested and the client did not.

mod event_members;

mod usage_splitter;

#[cfg(test)]
mod member_tests;
#[cfg(test)]
mod tests;
mod usage_filter;

pub(super) use usage_filter::{EventParts, UsageFilter};
pub(super) use usage_splitter::UsageSplitter;

//! Removal of usage that only the gateway requested.

mod event_members;

mod usage_splitter;

#[cfg(test)]
mod member_tests;
#[cfg(test)]
mod tests;
mod usage_filter;
mod usage_stage;

pub(super) use usage_filter::EventParts;
pub(super) use usage_stage::UsageStage;

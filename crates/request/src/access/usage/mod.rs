//! The usage of tenants, of keys and of models of tenants, and the limits on it.

mod bucket;
mod calendar;
mod limiter;
mod limits;
mod quota;
mod registry;
mod saved;
mod subject;

pub use calendar::QuotaPeriod;
pub use limiter::{ConcurrencyPermit, ModelPermit};
pub(super) use limiter::{Limiters, UsageLimiter, count, enter};
pub use limits::{QuotaScope, RateLimitStatus, UsageLimits};
pub use quota::{Quota, QuotaAnswer, QuotaClaim, QuotaUnit, SharingRule, UNGRANTED_DIVISOR};
pub use registry::QuotaRegistry;
pub use saved::{AwaitedQuotas, SavedQuota};
pub(super) use subject::CountedAs;
pub use subject::SubjectUsage;

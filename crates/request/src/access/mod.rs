//! Authentication by API key, and limits per tenant and per key.
//!
//! ```text
//! key          the key file has its SHA-256; the presented key is hashed and the digests are
//!              compared in constant time
//! limits       a request must be within the limits of its tenant and within those of its key
//! requests     limit per minute: a request starts if used + 1 ≤ limit, and then used grows by 1
//! tokens       limit per minute: a request starts if used < limit. When its response has ended,
//!              used grows by its tokens and may exceed the limit. No further request starts
//!              until used is below the limit again
//! used         falls by limit ÷ 60 per second, to 0 at least (leaky bucket)
//! concurrency  limit of open requests: a request is open until its response has ended or its
//!              client has disconnected
//! quota        limit per calendar day or month in UTC: used is 0 at the start of the period. With
//!              gateways that count together, all limits are quotas too
//! ```
//!
//! A token of an issuer (`tokens`) stands for a key that is not in the key file.
//!
//! A fast hash is sufficient, because a key has 256 random bits and cannot be guessed. Passwords would need a
//! slow hash.

mod api_keys;
mod caps;
mod charge;
pub mod cors;
mod digest;
mod key_file;
mod model_allowlist;
mod pseudonym;
mod salt;
#[cfg(test)]
mod tests;
mod tokens;
mod usage;

pub use api_keys::{
    ApiKey, ApiKeys, Tenant, TokenSource, bearer, presented_key, remove_credentials,
};
pub use caps::{CapEdits, CappedRequest, RequestCaps};
pub use charge::TokenCharge;
pub use cors::Cors;
pub use digest::{KeyDigest, mint};
pub use key_file::{KeyEntry, KeyFile, KeyFileError, TenantEntry};
pub use model_allowlist::ModelAllowlist;
pub use pseudonym::PseudonymKey;
pub use salt::SaltKey;
pub use tokens::{RefusedToken, TokenGrant, TokenRefusal};
pub use usage::{
    AwaitedQuotas, ConcurrencyPermit, ModelPermit, Quota, QuotaAnswer, QuotaClaim, QuotaPeriod,
    QuotaRegistry, QuotaScope, QuotaUnit, RateLimitStatus, SavedQuota, SharingRule, SubjectUsage,
    UNGRANTED_DIVISOR, UsageLimits,
};

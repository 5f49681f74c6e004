//! Authentication by API key, and limits per tenant and per key.
//!
//! ```text
//! key          the key file has its SHA-256; the presented key is hashed and the digests are
//!              compared in constant time
//! limits       those of the tenant and those of the key must both hold
//! requests     a request starts if used + 1 ≤ limit, and adds 1
//! tokens       a request starts if used < limit; its tokens are added when its response has ended.
//!              They may exceed the limit; the excess must drain before another request starts
//! used         falls by limit ÷ 60 per second, to 0 at least (leaky bucket)
//! concurrency  open requests: each until its response has ended or its client has disconnected
//! ```
//!
//! A fast hash is sufficient: a key has 256 random bits and cannot be guessed. Passwords would need
//! a slow hash.

mod api_keys;
mod charge;
pub mod cors;
mod digest;
mod key_file;
mod model_allowlist;
mod salt;
#[cfg(test)]
mod tests;
mod usage_limits;
mod usage_meter;

pub use api_keys::{ApiKey, ApiKeys, bearer, remove_credentials};
pub use charge::TokenCharge;
pub use cors::Cors;
pub use digest::{KeyDigest, mint};
pub use key_file::{KeyEntry, KeyFile, KeyFileError, TenantEntry};
pub use model_allowlist::ModelAllowlist;
pub use salt::SaltKey;
pub use usage_limits::{RateLimitStatus, UsageLimits};
pub use usage_meter::ConcurrencyPermit;

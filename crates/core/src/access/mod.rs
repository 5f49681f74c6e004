//! Who may come in, and how much they may take: tenants with their API keys, the models that they
//! may use, and what they have used lately.
//!
//! ```text
//! key       its SHA-256 is in the file; what a client sends is hashed, and the hashes are compared
//!           in constant time
//! limits    those of the tenant and those of the key: both must hold
//! requests  used ≤ limit − 1 at the start, which uses one
//! tokens    used < limit at the start; when the answer has ended its tokens are used, and may be
//!           more than the limit: that is a debt, and nothing starts before it is paid
//! used      falls by limit ÷ 60 each second, and never below 0
//! places    requests that are open, each until its answer is over or its client has left
//! ```
//!
//! A fast hash is right here: a key has 256 random bits, and nobody can try those. Passwords, which
//! people choose, would need a slow one.

mod charge;
pub mod cors;
mod digest;
mod keys;
mod limits;
mod meter;
mod models;
mod roster;
mod salt;
#[cfg(test)]
mod tests;

pub use charge::Charge;
pub use cors::Cors;
pub use digest::{KeyDigest, mint};
pub use keys::{Key, Keys, bearer, take_credentials};
pub use limits::{Limits, Standing};
pub use meter::Place;
pub use models::Models;
pub use roster::{KeyEntry, Roster, TenantEntry, Wrong};
pub use salt::SaltKey;

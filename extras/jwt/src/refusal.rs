//! Why a token is refused.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokenweir_protocol::named_enum;
use tokenweir_request::access::TokenRefusal;

named_enum! {
    /// Why a token is refused. The reasons have no part of the token.
    pub enum Refusal {
        /// It is not a signed token of one signature, or the request has two.
        Malformed = "malformed",
        /// Its algorithm is not one of its key, or not allowed.
        Algorithm = "algorithm",
        /// No configured issuer issued it.
        Issuer = "issuer",
        /// The issuer has no key of its key id.
        UnknownKey = "unknown_key",
        /// The keys of the issuer have not been read yet.
        NoKeys = "no_keys",
        /// The signature is wrong.
        Signature = "signature",
        /// It has expired.
        Expired = "expired",
        /// It is not valid yet.
        NotYetValid = "not_yet_valid",
        /// It is for another audience.
        Audience = "audience",
        /// It was issued to a client that is not in the list.
        Client = "client",
        /// The claims for the tier, the models or the limits are invalid.
        Claims = "claims",
        /// It names no tenant of the key file, and there is no default.
        Tenant = "tenant",
    }
}

/// Numbers of refused tokens, by reason.
#[derive(Debug, Default)]
pub(super) struct RefusalCounts([AtomicU64; Refusal::ALL.len()]);

impl RefusalCounts {
    /// Counts a refusal, and converts it to that of the contract.
    pub(super) fn count(&self, refusal: Refusal) -> TokenRefusal {
        self.0[refusal as usize].fetch_add(1, Relaxed);
        TokenRefusal {
            reason: refusal.as_str(),
            is_temporary: refusal == Refusal::NoKeys,
        }
    }

    pub(super) fn list(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Relaxed));
        Refusal::NAMES.iter().copied().zip(counts).collect()
    }
}

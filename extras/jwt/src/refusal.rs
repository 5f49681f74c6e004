//! The reasons for which tokens are refused.

use tokenweir_protocol::atomic::AtomicCounter;
use tokenweir_protocol::named_enum;
use tokenweir_request::access::TokenRefusal;

named_enum! {
    /// Why a token is refused. No reason contains a part of the token.
    pub enum Refusal {
        /// The token is not a JWT with one signature, or the request has two tokens.
        Malformed = "malformed",
        /// The algorithm does not fit the key, or is not allowed.
        Algorithm = "algorithm",
        /// No configured issuer issued the token.
        Issuer = "issuer",
        /// The issuer has no key with the key id of the token.
        UnknownKey = "unknown_key",
        /// The keys of the issuer have not been read yet.
        NoKeys = "no_keys",
        /// The signature does not fit the key.
        Signature = "signature",
        /// The token has expired.
        Expired = "expired",
        /// The token is not valid yet.
        NotYetValid = "not_yet_valid",
        /// The token is for another audience.
        Audience = "audience",
        /// The token was issued to a client that is not in the list.
        Client = "client",
        /// The claims for the tier, the models or the limits are invalid.
        Claims = "claims",
        /// The token names no tenant of the key file, and no default tenant is configured.
        Tenant = "tenant",
    }
}

/// Number of refused tokens by reason.
#[derive(Debug, Default)]
pub(super) struct RefusalCounts([AtomicCounter; Refusal::ALL.len()]);

impl RefusalCounts {
    /// Counts a refusal, and converts it to the type that the gateway expects.
    pub(super) fn count(&self, refusal: Refusal) -> TokenRefusal {
        self.0[refusal as usize].add(1);
        TokenRefusal {
            reason: refusal.as_str(),
            is_temporary: refusal == Refusal::NoKeys,
        }
    }

    pub(super) fn list(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(AtomicCounter::get);
        Refusal::NAMES.iter().copied().zip(counts).collect()
    }
}

//! Why a request to a decode backend has no prefill leg.

/// Why a request to a decode backend has no prefill leg. The decode backend computes the prompt itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrefillSkip {
    /// The API has no prefill legs.
    Api,
    /// A field of the request does not allow it, or the request may have side effects.
    Field,
    /// A header has a digest of the body, which must not be edited.
    SignedBody,
    /// No prefill backend is available.
    NoBackend,
    /// The first output would probably not come earlier.
    NotFaster,
    /// All prefill legs failed, or the decode backend did not get the blocks.
    Failed,
}

impl PrefillSkip {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::Api, Self::Field, Self::SignedBody, Self::NoBackend, Self::NotFaster, Self::Failed];

    /// The name in metrics and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Field => "field",
            Self::SignedBody => "signed_body",
            Self::NoBackend => "no_backend",
            Self::NotFaster => "not_faster",
            Self::Failed => "failed",
        }
    }
}

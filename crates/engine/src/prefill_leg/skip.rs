//! Why a request to a decode backend has no prefill leg.

use tokenweir_protocol::named_enum;

named_enum! {
    /// Why a request to a decode backend has no prefill leg. The decode backend computes the prompt
    /// itself.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum PrefillSkip {
        /// The gateway makes no prefill legs for the API of the request.
        Api = "api",
        /// A field of the request rules out a prefill leg, or the request may have side effects.
        Field = "field",
        /// A header has a digest of the body, which must not be edited.
        SignedBody = "signed_body",
        /// No prefill backend is available.
        NoBackend = "no_backend",
        /// With a prefill leg, the first output would probably not come earlier.
        NotFaster = "not_faster",
        /// All prefill legs failed, or the decode backend did not get the blocks.
        Failed = "failed",
    }
}

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
        /// A request header has a digest of the body, so the gateway must not edit the body.
        SignedBody = "signed_body",
        /// No prefill backend is available.
        NoBackend = "no_backend",
        /// The gateway expects that the first output would not come earlier with a prefill leg.
        NotFaster = "not_faster",
        /// The request bodies in the gateway leave no memory for the bodies of two legs.
        Memory = "memory",
        /// All prefill legs failed, or the decode backend did not receive the KV blocks.
        Failed = "failed",
    }
}

//! The role of a backend: the legs of requests that the backend serves.

use schemars::JsonSchema;
use serde::Deserialize;
use tokenweir_protocol::named_enum;

named_enum! {
    /// The legs of requests that a backend serves.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Role {
        /// Prefill legs. Whole requests only while no other backend of the model is up.
        Prefill = "prefill",
        /// Decode legs and whole requests.
        Decode = "decode",
        /// Both legs, and whole requests.
        Both = "both",
    }
}

impl Role {
    /// Whether the backend serves prefill legs.
    pub const fn serves_prefill_legs(self) -> bool {
        !matches!(self, Self::Decode)
    }

    /// Whether the backend serves decode legs.
    pub const fn serves_decode_legs(self) -> bool {
        !matches!(self, Self::Prefill)
    }
}

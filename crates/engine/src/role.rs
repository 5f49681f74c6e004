//! The role of a backend: the parts of a request that it serves.

use schemars::JsonSchema;
use serde::Deserialize;
use tokenweir_protocol::named_enum;

named_enum! {
    /// The legs of requests that a backend serves.
    #[derive(Deserialize, JsonSchema)]
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
    /// Whether the backend computes prompts for other backends.
    pub const fn computes_for_others(self) -> bool {
        !matches!(self, Self::Decode)
    }

    /// Whether the backend generates output from prompts that other backends have computed.
    pub const fn reads_remote_prompts(self) -> bool {
        !matches!(self, Self::Prefill)
    }
}

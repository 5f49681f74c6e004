//! The legs of requests that a backend serves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The legs of requests that a backend serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Prefill legs. Whole requests only while no other backend of the model is up.
    Prefill,
    /// Decode legs and whole requests.
    Decode,
    /// Both legs, and whole requests.
    Both,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Prefill, Self::Decode, Self::Both];

    /// The name in the configuration and in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Both => "both",
        }
    }

    /// Whether the backend serves prefill legs.
    pub const fn serves_prefill_legs(self) -> bool {
        !matches!(self, Self::Decode)
    }

    /// Whether the backend serves decode legs.
    pub const fn serves_decode_legs(self) -> bool {
        !matches!(self, Self::Prefill)
    }
}

//! In whose words the spans are: the two generations of the GenAI conventions, and what viewers
//! want besides them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A generation of the GenAI conventions, which are still in development.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Semconv {
    /// The last that was released: what most viewers know.
    #[default]
    #[serde(rename = "v1.41")]
    V1_41,
    /// What they have become since, in a repository of their own.
    #[serde(rename = "latest")]
    Latest,
}

/// A viewer that reads more than the conventions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Langfuse: its own attributes.
    Langfuse,
    /// Arize Phoenix, and others that read `OpenInference`.
    OpenInference,
}

/// In whose words the spans are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Style {
    /// The names of attributes.
    pub semconv: Semconv,
    /// Who is served besides.
    pub profiles: Vec<Profile>,
}

// === impl Semconv ===

impl Semconv {
    /// The schema that the names are from.
    pub(super) const fn schema_url(self) -> &'static str {
        match self {
            Self::V1_41 => "https://opentelemetry.io/schemas/1.41.0",
            Self::Latest => "https://opentelemetry.io/schemas/gen-ai/1.42.0",
        }
    }

    /// Prompt tokens that were put into the cache.
    pub(super) const fn cache_written(self) -> &'static str {
        match self {
            Self::V1_41 => "gen_ai.usage.cache_creation.input_tokens",
            Self::Latest => "gen_ai.usage.cache_write.input_tokens",
        }
    }
}

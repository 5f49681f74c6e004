//! The semantic conventions of spans, which define attribute names: two versions of the GenAI conventions, and
//! additional attributes for some trace viewers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A version of the GenAI conventions, which are still in development.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Semconv {
    /// Version 1.41 of the OpenTelemetry conventions, which most trace viewers support.
    #[default]
    V1_41,
    /// Version 0.1.0 of the new repository of the GenAI conventions.
    Latest,
}

/// A viewer that reads additional attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ViewerProfile {
    /// Langfuse, with its own attributes.
    Langfuse,
    /// Arize Phoenix and other viewers of `OpenInference` attributes.
    OpenInference,
}

/// The semantic conventions that determine the attribute names of spans.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpanConventions {
    /// The version of the GenAI conventions.
    pub semconv: Semconv,
    /// Viewers for which additional attributes are written.
    pub profiles: Vec<ViewerProfile>,
}

impl Semconv {
    /// Returns the OpenTelemetry schema URL of this version of the conventions.
    pub(super) const fn schema_url(self) -> &'static str {
        match self {
            Self::V1_41 => "https://opentelemetry.io/schemas/1.41.0",
            Self::Latest => "https://opentelemetry.io/schemas/gen-ai/0.1.0",
        }
    }

    /// Returns the name of the attribute for the number of prompt tokens that were written to the
    /// prefix cache.
    pub(super) const fn cache_write_attribute(self) -> &'static str {
        match self {
            Self::V1_41 => "gen_ai.usage.cache_creation.input_tokens",
            Self::Latest => "gen_ai.usage.cache_write.input_tokens",
        }
    }
}

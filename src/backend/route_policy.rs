//! Per-model overrides of the timeouts and of the handling of truncated streams.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokenweir_core::observe::OnTruncation;
use tokenweir_core::units;

/// Per-model overrides. An unset key means the global setting applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RoutePolicy {
    /// Timeout for the response headers.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub response_headers: Option<Duration>,
    /// Timeout for the first output of a stream, from the arrival of the request headers.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub first_output: Option<Duration>,
    /// Maximum time between two outputs of a stream.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub idle: Option<Duration>,
    /// How the gateway ends a truncated stream.
    pub on_truncation: Option<OnTruncation>,
}

//! On what terms requests for a model are carried, where they are not those of all requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokenweir_core::observe::OnTruncation;
use tokenweir_core::units;

/// On what terms requests for a model are carried. `None`: on those of all requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Terms {
    /// Longest wait for a response head.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub response_headers: Option<Duration>,
    /// Longest wait for the first output of a stream, from the head of its request on.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub first_output: Option<Duration>,
    /// Longest silence of a stream between two outputs.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub idle: Option<Duration>,
    /// What a client is told of a stream that breaks off.
    pub on_truncation: Option<OnTruncation>,
}

//! On what terms a stream is carried.

use crate::units;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What is done to streams besides forwarding them. By default nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StreamRules {
    /// What a client is told of a stream that breaks off.
    pub on_truncation: OnTruncation,
    /// A comment is put between events whenever a replica has been silent for as long.
    /// `None`: never.
    #[serde(with = "units::optional_duration")]
    #[schemars(with = "Option<units::schema::Duration>")]
    pub keep_alive: Option<Duration>,
}

/// What a client is told of a stream that breaks off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTruncation {
    /// Its connection is cut, as the replica's was: no end is made up.
    #[default]
    Cut,
    /// Before that it gets an error event, if what it has are whole events.
    ErrorEvent,
}

/// The terms of one stream.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terms {
    /// When its first output must have come.
    pub first_output_by: Option<Instant>,
    /// Longest silence between two outputs.
    pub idle: Option<Duration>,
    /// What is done to it.
    pub rules: StreamRules,
}

//! What is configured of the look at quality.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use tokenweir_core::units;

/// Whether quality is looked at, and who gets a sample of prompts and answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Whether lengths, refusals and scores of answers are looked at.
    pub enabled: bool,
    /// Share of requests whose text goes to the file and the judge, from 0 to 0.05.
    pub sample: f64,
    /// A file that gets the sample, a JSON object a line. `None`: none.
    pub file: Option<PathBuf>,
    /// Most bytes of the file and the one before it together.
    #[serde(with = "units::bytes")]
    #[schemars(with = "units::schema::Size")]
    pub max_file_bytes: usize,
    /// A server that scores answers. `None`: nobody does.
    pub judge: Option<String>,
    /// How long the judge may take for one answer.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub judge_timeout: Duration,
    /// The time over which what was lately is averaged.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub recent: Duration,
    /// The longer time to which that is compared.
    #[serde(with = "units::duration")]
    #[schemars(with = "units::schema::Duration")]
    pub baseline: Duration,
}

impl Settings {
    /// The share of requests whose text somebody gets.
    pub const fn share(&self) -> f64 {
        let is_read = self.enabled && (self.file.is_some() || self.judge.is_some());
        if is_read { self.sample } else { 0.0 }
    }
}

impl Default for Settings {
    /// Off. Else no text for anybody until a file or a judge is named, then one request in a
    /// hundred; an hour is compared to a day.
    fn default() -> Self {
        Self {
            enabled: false,
            sample: 0.01,
            file: None,
            max_file_bytes: 1 << 30,
            judge: None,
            judge_timeout: Duration::from_secs(10),
            recent: Duration::from_hours(1),
            baseline: Duration::from_hours(24),
        }
    }
}

//! Configuration of quality monitoring.

use std::path::PathBuf;
use std::time::Duration;
use tokenweir_protocol::{settings, units};

settings! {
    /// Quality monitoring, and the destinations of sampled prompts and responses.
    pub struct QualitySettings {
        /// Whether lengths, refusals and scores of responses are monitored.
        pub enabled: bool,
        /// Share of requests whose text goes to the file and the judge, from 0 to 0.05.
        pub sample: f64,
        /// File for the sample, one JSON object per line. `None`: no file.
        pub file: Option<PathBuf>,
        /// URL of a judge server that scores responses. `None`: no judge.
        pub judge: Option<String>,
        /// Longest wait for the score of one response. Not a key of the configuration.
        #[serde(skip)]
        pub judge_timeout: Duration,
        /// Time constant of the recent mean. It is compared to a baseline mean with 24 times this constant.
        #[serde(with = "units::Duration")]
        pub window: Duration,
    }
}

impl QualitySettings {
    /// Time constant of the baseline mean. With the default of an hour for the recent mean, the baseline
    /// covers a day of traffic.
    pub(super) const fn baseline_window(&self) -> Duration {
        self.window.saturating_mul(24)
    }

    /// Returns the share of requests whose prompts and responses are sampled, from 0 to 0.05. It is
    /// 0 if quality monitoring is disabled or has neither a file nor a judge.
    pub const fn share(&self) -> f64 {
        let has_destination = self.enabled && (self.file.is_some() || self.judge.is_some());
        if has_destination { self.sample } else { 0.0 }
    }

    /// The file, the judge and the share of sampled requests, as text. `None`: no request is sampled.
    pub fn target(&self) -> Option<String> {
        let file = self.file.as_ref().map(|file| file.display().to_string());
        let targets: Vec<String> = file.into_iter().chain(self.judge.clone()).collect();
        let share = self.share() * 1e2;
        (share > 0.0).then(|| format!("{share} % of requests to {}", targets.join(" and ")))
    }
}

impl Default for QualitySettings {
    /// Quality monitoring is disabled. The defaults that apply when it is enabled: 1 % of the
    /// requests are sampled for the file and the judge, and a mean of 1 hour is compared to a mean
    /// of 1 day.
    fn default() -> Self {
        Self {
            enabled: false,
            sample: 0.01,
            file: None,
            judge: None,
            judge_timeout: Duration::from_secs(10),
            window: Duration::from_hours(1),
        }
    }
}

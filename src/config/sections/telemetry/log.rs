//! The section `log`: logs.

use schemars::JsonSchema;
use serde::Deserialize;
#[cfg(feature = "options")]
use tokenweir_payload_log::{self as payload_log, PayloadLogSettings};
use tokenweir_protocol::named_enum;
use tokenweir_protocol::{settings, units};
#[cfg(feature = "options")]
use tokenweir_settings::{CheckResult, OutputFile};
use tokenweir_settings::{ConfigSection, ReloadClass};

settings! {
    /// Logs.
    pub struct LogConfig {
        /// Minimum level of events in the process log.
        pub level: LogLevel,
        /// Format of the lines.
        pub format: LogFormat,
        /// Whether the access log has a line for each request. Lines never contain prompts, responses
        /// or keys.
        pub access: bool,
        /// Whether the access log also has a line when the body of a request was read.
        pub access_start: bool,
        /// Maximum number of access log lines per second for requests without a tenant that succeeded at the
        /// first attempt, neither slow nor stalled, and for requests that no backend got. All others are always
        /// logged. `None`: no limit.
        pub access_per_second: Option<u32>,
        /// Maximum size of `payloads.file`, `quality.file` and `trace_capture.file`, each together with its
        /// rotated file `FILE.old`. At least 1MiB, and 32 times `payloads.max_bytes`.
        #[serde(with = "units::Size")]
        pub max_file_bytes: usize,
        /// The payload log, with prompts and responses.
        #[cfg(feature = "options")]
        pub payloads: PayloadLogSettings,
    }
}

named_enum! {
    /// The level of a log event.
    #[derive(Default, Deserialize, JsonSchema, clap::ValueEnum)]
    #[serde(rename_all = "lowercase")]
    pub enum LogLevel {
        /// Failures.
        Error = "error",
        /// Conditions that may lead to a failure.
        Warn = "warn",
        /// Changes of state.
        #[default]
        Info = "info",
        /// Details for debugging.
        Debug = "debug",
        /// All events.
        Trace = "trace",
    }
}

settings! {
    /// The format of log lines.
    #[derive(Default, clap::ValueEnum)]
    pub enum LogFormat {
        /// Text on a terminal, else JSON.
        #[default]
        Auto,
        /// Text.
        Human,
        /// One JSON object per line.
        Json,
    }
}

impl Default for LogConfig {
    /// Level info, and an access log with up to 1,000 lines per second for successful requests.
    fn default() -> Self {
        Self {
            level: LogLevel::default(),
            format: LogFormat::default(),
            access: true,
            access_start: false,
            access_per_second: Some(1_000),
            max_file_bytes: 1 << 30,
            #[cfg(feature = "options")]
            payloads: PayloadLogSettings::default(),
        }
    }
}

/// Values, rules and reload class of the section `log`.
pub struct Section;

impl<C> ConfigSection<C> for Section {
    type Values = LogConfig;
    const RELOAD: ReloadClass = ReloadClass::AfterRestart;

    #[cfg(feature = "options")]
    fn check(log: &LogConfig, _: &C) -> CheckResult {
        payload_log::check(&log.payloads, log.max_file_bytes)
    }

    fn reloaded(old: &LogConfig, new: &LogConfig) -> LogConfig {
        LogConfig {
            level: new.level,
            ..old.clone()
        }
    }

    #[cfg(feature = "options")]
    fn output_file(log: &LogConfig) -> Option<OutputFile<'_>> {
        payload_log::output_file(&log.payloads)
    }
}
